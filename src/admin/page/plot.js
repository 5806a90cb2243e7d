// Plots: stacked areas over time, as SVG. The readout stands in the legend, so nothing moves.
const SVG = "http://www.w3.org/2000/svg";

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// The least round number that is not below this number.
function ceiling(number) {
  const power = 10 ** Math.floor(Math.log10(Math.max(number, 1e-3)));
  return power * [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => step * power >= number * 0.999);
}

function sparkline(values, hue) {
  const most = Math.max(...values, 0.001);
  const step = 100 / Math.max(values.length - 1, 1);
  const points = values.map((value, at) => `${(at * step).toFixed(1)},${(23 - 21 * value / most).toFixed(1)}`);
  const made = shape("svg", { viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" });
  const isFlat = !values.some((value) => value > 0);
  const all = isFlat ? "0,23 100,23" : points.join(" ");
  made.append(
    shape("polygon", { points: `0,24 ${all} 100,24`, fill: hue, opacity: ".15" }),
    shape("polyline", { points: all, fill: "none", stroke: isFlat ? "var(--line)" : hue, "stroke-width": "1.5", "vector-effect": "non-scaling-stroke" }));
  return made;
}

class Plot {
  // `series` is a list of { name, label, hue }. With `stacked`, the areas stand on each other.
  constructor(container, { title, unit, stacked, height }) {
    Object.assign(this, { container, title, unit, stacked, height, series: [], points: [], at: null });
    this.legend = element("div", { className: "legend" });
    this.svg = shape("svg", { role: "img", tabindex: "0" });
    container.append(this.legend, this.svg);
    container.classList.add("none");
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.choose(null));
    this.svg.addEventListener("blur", () => this.choose(null));
    this.svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || !this.points.length) return;
      event.preventDefault();
      const last = this.points.length - 1;
      this.choose(Math.min(Math.max((this.at ?? last) + step, 0), last));
    });
    new ResizeObserver(() => this.draw()).observe(container);
  }

  // Shows these points, each { time, values }, and marks, each { at_ms, text }, from `from` to `to` in milliseconds.
  show(series, points, from, to, marks) {
    const names = series.map((one) => one.name).join();
    if (names !== this.names) {
      this.names = names;
      this.values = series.map(() => element("b", {}));
      this.when = element("time", {});
      this.legend.replaceChildren(...series.map((one, index) => {
        const mark = element("i", {});
        mark.style.setProperty("--hue", one.hue);
        return element("span", {}, mark, one.label, this.values[index]);
      }), this.when);
    }
    Object.assign(this, { series, points, from, to, marks: marks.filter((mark) => mark.at_ms >= from && mark.at_ms <= to) });
    if (this.at !== null && this.at >= points.length) this.at = null;
    keep(this.container, points.some(({ values }) => values.some(Boolean)));
    this.draw();
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const time = this.from + (event.clientX - box.left - 44) / (box.width - 52) * (this.to - this.from);
    let nearest = null;
    this.points.forEach((point, index) => {
      if (nearest === null || Math.abs(point.time - time) < Math.abs(this.points[nearest].time - time)) nearest = index;
    });
    this.choose(nearest);
  }

  choose(index) {
    this.at = index;
    this.draw();
  }

  draw() {
    const width = Math.max(this.container.clientWidth, 200), { height, points, series, from, to } = this;
    if (!series.length) return;
    const sum = (values) => (this.stacked ? values.reduce((all, value) => all + (value ?? 0), 0) : Math.max(...values.map((value) => value ?? 0)));
    const top = ceiling(Math.max(...points.map((point) => sum(point.values)), this.unit === "ms" ? 0.1 : 1));
    const x = (time) => 44 + (time - from) / (to - from) * (width - 52);
    const y = (value) => height - 20 - value / top * (height - 30);
    const parts = [];
    for (const line of [0, 0.5, 1]) {
      parts.push(shape("line", { class: "grid", x1: 44, x2: width - 8, y1: y(top * line), y2: y(top * line) }));
      parts.push(this.text(38, y(top * line) + 4, short(top * line), "end"));
    }
    const count = width < 640 ? 2 : 4;
    for (let tick = 0; tick <= count; tick += 1) {
      const time = from + (to - from) * tick / count;
      const clock = new Date(time).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", ...(to - from < 600000 ? { second: "2-digit" } : {}) });
      parts.push(this.text(x(time), height - 4, clock, tick === 0 ? "start" : tick === count ? "end" : "middle"));
    }
    const seen = points.filter((point) => point.time >= from);
    const base = seen.map(() => 0);
    series.forEach((one, index) => {
      const upper = seen.map((point, at) => (this.stacked ? base[at] : 0) + (point.values[index] ?? 0));
      const path = (values) => seen.map((point, at) => `${x(point.time).toFixed(1)} ${y(values[at]).toFixed(1)}`);
      // A series has no line where it is zero: the line would hide the series below it.
      const isDrawn = (at) => [at - 1, at, at + 1].some((near) => seen[near]?.values[index] > 0);
      if (seen.length > 1) {
        const all = path(upper), line = all.map((to, at) => (isDrawn(at) ? (at && isDrawn(at - 1) ? "L" : "M") + to : "")).join("");
        if (this.stacked) parts.push(shape("path", { d: `M${all.join("L")}L${path(base).reverse().join("L")}Z`, fill: one.hue, opacity: ".3" }));
        parts.push(shape("path", { d: line, fill: "none", stroke: one.hue, "stroke-width": "1.6", "stroke-linejoin": "round" }));
      }
      if (this.stacked) upper.forEach((value, at) => { base[at] = value; });
    });
    let free = 0;
    for (const { at_ms, text } of this.marks) {
      parts.push(shape("line", { class: "mark", x1: x(at_ms), x2: x(at_ms), y1: 4, y2: height - 20 }));
      const words = text.length > 30 ? `${text.slice(0, 29)}…` : text, room = 7 * words.length;
      const from = x(at_ms) + room > width ? x(at_ms) - room : x(at_ms) + 4;
      if (from < free) continue;
      parts.push(this.text(from, 12, words, "start"));
      free = from + room;
    }
    const chosen = points[this.at ?? points.length - 1];
    if (this.at !== null && chosen) parts.push(shape("line", { class: "cross", x1: x(chosen.time), x2: x(chosen.time), y1: 8, y2: height - 20 }));
    if (!points.length) parts.push(this.text(width / 2, height / 2, "no traffic yet", "middle"));
    this.values.forEach((value, index) => { value.textContent = chosen ? short(chosen.values[index]) + (this.unit ? " " + this.unit : "") : "–"; });
    this.when.textContent = chosen && this.at !== null ? new Date(chosen.time).toLocaleTimeString() : "";
    const readout = chosen ? series.map((one, index) => `${one.label} ${short(chosen.values[index])}`).join(", ") : "no traffic yet";
    this.svg.setAttribute("aria-label", `${this.title}: ${readout}`);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(...parts);
  }

  text(x, y, text, anchor) {
    const made = shape("text", { x, y, "text-anchor": anchor });
    made.textContent = text;
    return made;
  }
}
