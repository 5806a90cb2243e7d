// The processes that share the store: what all of them do, and what each does.

const MARKS = { here: "this one", silent: "no answer", odd_config: "other file", odd_version: "other version" };

// Null while this process is the only one.
let fleet = null;

async function askFleet() {
  fleet = status.store.processes > 1 ? await asJson("/api/fleet").catch(() => fleet) : null;
  const whose = byId("whose").parentElement;
  byId("fleet").hidden = whose.hidden = !fleet;
  whose.parentElement.classList.toggle("bar", Boolean(fleet));
  if (fleet) showFleet();
}

function showFleet() {
  const all = [{ name: "All", ...fleet.sums }, ...fleet.processes.map((one) => ({ ...one, silent: one.requests === null }))];
  const nameOf = (one, at) => `${at} ${one.name}`;
  const row = rows(byId("processes").tBodies[0], all.map(nameOf), (name, at) => {
    const badges = Object.entries(MARKS).map(([mark, text]) => [mark, element("span", { className: `badge ${mark}` }, text)]);
    const head = element("th", { scope: "row" }, element(at ? "code" : "strong", {}, all[at].name), ...badges.map(([, badge]) => badge));
    const cells = numberCells(["requests/s", "rejected/s", "requests", "store", "since", "version", "file"]);
    cells.forEach((cell, no) => { cell.className = no < 3 ? "n" : at ? "" : "none"; });
    return { row: element("tr", {}, head, ...cells), badges, cells };
  });
  all.forEach((one, at) => {
    const { badges, cells } = row(nameOf(one, at));
    for (const [mark, badge] of badges) badge.hidden = !one[mark];
    [one.requests_per_second, one.rejected_per_second, one.requests].forEach((number, no) => fill(cells[no], number));
    cells[1].classList.toggle("hot", one.rejected_per_second > 0);
    if (!at) return;
    const state = { true: ["up", "up"], false: ["down", "away"] }[one.store] ?? ["", "–"];
    cells[3].replaceChildren(element("span", { className: state[0] }, state[1]));
    [one.since && clock(one.since), one.version, one.config_version].forEach((text, no) => { cells[no + 4].textContent = text ?? "–"; });
  });
  byId("fleet-note").textContent = fleet.note ? `${fleet.note[0].toUpperCase()}${fleet.note.slice(1)}.`
    : "The figures below are those of this process alone, unless “all processes” is chosen.";
}

setInterval(() => { if (fleet && !document.hidden) askFleet(); }, 2000);
