"""Numbers as Markdown: ratios first, since absolute times mean little on another machine."""

from statistics import median

BASE = "nginx"


def ratios(values, base):
    """Round by round."""
    return [value / other for value, other in zip(values, base) if other]


def spread(values, form="{:.2f}"):
    """Median and range."""
    if len(values) == 1:
        return form.format(values[0])
    low, high = form.format(min(values)), form.format(max(values))
    return f"{form.format(median(values))} ({low} to {high})"


def table(header, rows):
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def compare(samples, columns, base=BASE, kind="peer"):
    """For each peer the ratio of each column to the base's, and the medians themselves.

    `columns` is a list of (title, value of a sample, format of the absolute value).
    """
    base = base if base in samples else next(iter(samples))
    header = [kind]
    for title, _, _ in columns:
        header += [f"{title}, to {base} = 1", "median"]
    rows = []
    for name, got in samples.items():
        row = [name]
        for _, read, form in columns:
            values = [read(sample) for sample in got]
            to = ratios(values, [read(sample) for sample in samples[base]])
            row += [spread(to) if name != base else "1", form.format(median(values))]
        rows.append(row)
    return table(header, rows)


def rounds(samples, read, title, base=BASE):
    """Every round's ratio to the base."""
    base = base if base in samples else next(iter(samples))
    others = [name for name in samples if name != base]
    if not others:
        return ""
    of = {name: [read(sample) for sample in got] for name, got in samples.items()}
    columns = {name: ratios(of[name], of[base]) for name in others}
    rows = [
        [turn + 1, *(f"{columns[name][turn]:.2f}" for name in others)]
        for turn in range(len(of[base]))
    ]
    return f"{title}, round by round:\n\n" + table(["round", *others], rows)
