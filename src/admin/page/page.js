// What the page shows of each status.

let shown = "", isHour = false, status = null;
const plots = {
  decisions: new Plot(byId("plot-decisions"), { title: "Decisions a second", unit: "", stacked: true, height: 220 }),
  routes: new Plot(byId("plot-routes"), { title: "Requests a second by route", unit: "", stacked: true, height: 220 }),
  store: new Plot(byId("plot-store"), { title: "Latency of the store", unit: "ms", stacked: false, height: 110 }),
};
const WRONG_TOKEN = "This token is not the right one.";
const HUES = ["var(--r0)", "var(--r1)", "var(--r2)", "var(--r3)", "var(--r4)"];

const tiles = [{ name: "requests", label: "Requests", hue: "var(--accent)" }, ...OUTCOMES].map((one) => {
  const number = element("strong", {}, "–"), spark = element("div", {});
  const label = one.label[0].toUpperCase() + one.label.slice(1);
  const tile = element("div", { className: one.name === "requests" ? "tile" : "tile none" }, element("p", {}, label), number, spark);
  tile.style.setProperty("--hue", one.hue);
  byId("tiles").append(tile);
  return (numbers) => {
    number.replaceChildren(short(numbers.at(-1) ?? null), element("small", {}, " /s"));
    keep(tile, numbers.some(Boolean));
    tile.classList.toggle("hot", ["failed", "refused"].includes(one.name) && numbers.at(-1) > 0);
    spark.replaceChildren(sparkline(numbers.slice(-60), one.hue));
  };
});

function choose(name) {
  byId("shown").value = name;
  byId("shown").dispatchEvent(new Event("change"));
}

function numberCells(labels) {
  return labels.map((label) => {
    const cell = element("td", { className: "n none" });
    cell.dataset.name = label;
    return cell;
  });
}

const textCell = (label) => Object.assign(numberCells([label])[0], { className: "" });

function showLimits() {
  const row = rows(byId("limits").tBodies[0], status.limits.map(({ name }) => name), (name) => {
    const link = element("button", { type: "button", className: "link" }, name);
    link.addEventListener("click", () => choose(`limits/${name}`));
    const badge = element("span", { className: "badge" }), key = element("td", { className: "mono" }), figures = element("td", {});
    const numbers = numberCells(["allowed/s", "held/s", "rejected/s", "shadowed/s", "marked/s", "refused/s"]), spark = element("td", { className: "none" });
    const head = element("th", { scope: "row" }, link, badge);
    return { row: element("tr", {}, head, key, figures, ...numbers, spark), link, badge, key, figures, numbers, spark };
  });
  for (const limit of status.limits) {
    const { link, badge, key, figures, numbers, spark } = row(limit.name);
    link.setAttribute("aria-pressed", String(shown === `limits/${limit.name}`));
    badge.hidden = limit.mode === "enforce";
    badge.className = `badge ${limit.mode}`;
    badge.textContent = limit.mode;
    key.textContent = limit.key.join(", ") || "all requests";
    // The rate of a window says its count.
    const sizes = { "token-bucket": `burst ${limit.burst}`, "leaky-bucket": `queue ${limit.burst - 1}`, concurrency: `${limit.burst} at once` };
    const most = limit.burst === null ? null : sizes[limit.algorithm];
    const forAll = limit.override?.in_force ? `now ${limit.override.rate} for all keys; in the file:` : null;
    figures.textContent = [[forAll, limit.rate ?? most].filter(Boolean).join(" "), limit.rate && most, limit.waiting ? `${limit.waiting} wait` : null, ...Object.entries(limit.plans ?? {}).map((plan) => plan.join(" "))].filter(Boolean).join(", ");
    DECISIONS.forEach(({ name }, at) => {
      fill(numbers[at], limit[`${name}_per_second`]);
      numbers[at].classList.toggle("hot", name === "rejected" && limit.rejected_per_second > 0);
    });
    fill(numbers[5], limit.refused_per_second);
    numbers[5].classList.toggle("hot", limit.refused_per_second > 0);
    const at = { enforce: 2, mark: 4 }[limit.mode] ?? 3;
    const refused = points.live.map((point) => (point.limits[limit.name] ?? NOTHING).decisions[at]);
    spark.replaceChildren(sparkline(refused, DECISIONS[at].hue));
    keep(spark, refused.some(Boolean));
  }
}

// The limits and the routes whose decisions can be shown.
function fillShown() {
  const groups = ["limits", "routes"].map((kind) => ({ kind, names: status[kind].map(({ name }) => `${kind}/${name}`) }));
  const values = groups.flatMap(({ names }) => names);
  const listed = [...byId("shown").options].slice(1).map((option) => option.value);
  if (values.join("\n") === listed.join("\n")) return;
  byId("shown").replaceChildren(element("option", { value: "" }, "all requests"), ...groups.map(({ kind, names }) =>
    element("optgroup", { label: kind }, ...names.map((value) => element("option", { value }, parted(value)[1])))));
  if (!values.includes(shown)) shown = "";
  byId("shown").value = shown;
}

// A long part of a key leaves room for the others.
const brief = (key) => (key.includes("|") ? key.replace(/[^|]{33,}/g, (part) => `${part.slice(0, 20)}…${part.slice(-11)}`) : key);

function showTop() {
  const own = status.limits.flatMap((limit) => limit.rejected_keys.map((key) => ({ ...key, limit: limit.name })));
  const all = fleet && byId("whose").value ? fleet.rejected : own;
  const rejected = all.filter(({ limit }) => !shown.startsWith("limits/") || shown === `limits/${limit}`);
  rejected.sort((one, other) => other.per_second - one.per_second || other.count - one.count);
  const list = rejected.slice(0, 8), nameOf = ({ limit, lookup }) => `${limit} ${lookup}`;
  const row = rows(byId("rejected"), list.length ? list.map(nameOf) : [""], (name, at) => {
    if (!name) return { row: element("li", { className: "quiet" }, "Nobody is rejected.") };
    const key = list[at], now = element("span", {}), count = element("span", {}), text = key.key || "all requests";
    const open = element("button", { type: "button", className: "link", title: `${text} of ${key.limit}` },
      element("code", {}, brief(text)), ...(key.name ? [element("span", {}, key.name)] : []), element("span", { className: "quiet" }, key.limit));
    open.addEventListener("click", () => {
      const name = key.limit.replace(/:candidate$/, "");
      chooseLimit(name);
      lookUp({ limit: name, key: key.lookup, query: "" });
      byId("key").scrollIntoView({ block: "nearest" });
    });
    return { row: element("li", {}, open, now, count), now, count };
  });
  const most = Math.max(list[0]?.per_second ?? 0, 0.001);
  for (const one of list) {
    const { row: made, now, count } = row(nameOf(one));
    made.style.setProperty("--share", `${Math.round(100 * one.per_second / most)}%`);
    now.textContent = `${short(one.per_second)}/s`;
    count.textContent = one.count;
  }
  const over = Math.max(0, ...list.map((one) => one.at_most_over));
  const minutes = Math.max(1, Math.round(status.rejected_keys_window_ms / 60000));
  // Each process has a window of its own.
  byId("rejected-in").textContent = all === own ? `in ${minutes} min` : "in 5 to 10 min";
  byId("rejected-note").textContent = "Shadowed and marked requests count too. " + (over ? `A count is too high by ${over} at most.` : all === own ? "The counts are exact." : "")
    + (all === own ? "" : " A process reports only its most rejected keys, so a count may be too low.");
}

function showRoutes() {
  const row = rows(byId("routes").tBodies[0], status.routes.map((route) => route.name), (name) => {
    const numbers = numberCells(["requests/s", "held/s", "rejected/s", "shadowed/s", "marked/s", "refused/s", "2xx", "3xx", "4xx", "5xx", "total"]);
    const link = element("button", { type: "button", className: "link mono" }, name);
    link.addEventListener("click", () => choose(`routes/${name}`));
    return { row: element("tr", { className: "none" }, element("th", { scope: "row" }, link), ...numbers), link, numbers };
  });
  for (const route of status.routes) {
    const by = route.statuses_per_second, { row: made, link, numbers } = row(route.name);
    keep(made, route.total);
    link.setAttribute("aria-pressed", String(shown === `routes/${route.name}`));
    const cells = [route.per_second, route.delayed_per_second, route.rejected_per_second, route.shadow_per_second, route.marked_per_second, route.refused_per_second,
      by["2xx"], by["3xx"], by["4xx"], by["5xx"], route.total];
    cells.forEach((number, at) => fill(numbers[at], number));
    numbers[2].classList.toggle("hot", route.rejected_per_second > 0);
    numbers[5].classList.toggle("hot", route.refused_per_second > 0);
    numbers[9].classList.toggle("hot", by["5xx"] > 0);
  }
}

// Who waits for an upstream with `max_requests`, and who was refused.
function queueOf({ overload: queue }) {
  if (!queue) return [];
  const waiting = queue.waiting.high + queue.waiting.normal + queue.waiting.low;
  const refused = queue.refused.slice(0, 3).map((it) => `${it.key || "all"} ${short(it.high + it.normal + it.low)}`);
  return [
    queue.limit === null ? "no limit" : `at most ${short(queue.limit)} at once${queue.mode === "shadow" ? " (in shadow)" : ""}`,
    `${short(queue.in_flight)} in flight`, waiting > 0 && `${short(waiting)} waiting`,
    queue.slow_percent !== null && `${short(queue.slow_percent)} % slower than ${short(queue.goal_ms * queue.goal_times)} ms`,
    queue.refused_per_second > 0 && `${short(queue.refused_per_second)} refused/s`,
    queue.since && `overloaded since ${clock(queue.since)}`, refused.length > 0 && `refused most: ${refused.join(", ")}`,
  ];
}

function showUpstreams() {
  const all = status.upstreams.flatMap((upstream) => [{ upstream }, ...upstream.servers.map((server) => ({ upstream, server }))]);
  const nameOf = ({ upstream, server }) => `${upstream.name} ${server?.url ?? ""}`;
  const row = rows(byId("upstreams").tBodies[0], all.map(nameOf), (name, at) => {
    const { upstream, server } = all[at], figures = element("span", { className: "quiet" });
    if (!server) return { row: element("tr", {}, element("th", { scope: "rowgroup", colSpan: 8 }, element("strong", {}, upstream.name), " ", figures)), figures };
    const state = element("td", {}), numbers = numberCells(["requests", "5xx", "in flight", "retries"]);
    const errors = textCell("errors"), check = textCell("last check");
    return { row: element("tr", {}, element("th", { scope: "row" }, element("code", {}, server.url)), state, ...numbers, errors, check), state, numbers, errors, check };
  });
  for (const one of all) {
    const { figures, state, numbers, errors, check } = row(nameOf(one)), { upstream, server } = one;
    if (!server) {
      figures.textContent = [`${short(upstream.answers_per_second)} answers/s`, upstream.p50_ms !== null && `p50 ${short(upstream.p50_ms)} ms`, upstream.p99_ms !== null && `p99 ${short(upstream.p99_ms)} ms`, ...queueOf(upstream)].filter(Boolean).join(" · ");
      continue;
    }
    state.className = server.up ? "up" : "down";
    state.textContent = `${server.up ? "up" : "set aside"} since ${clock(server.since)}`;
    state.title = server.reason ?? "";
    [server.requests_total, server.answers_5xx_total, server.in_flight, server.retries_total].forEach((number, at) => fill(numbers[at], number));
    errors.textContent = counts(server.errors) || "none";
    check.textContent = server.last_check ? `${server.last_check.passed ? "passed" : "failed"} ${clock(server.last_check.time)}` : "–";
    check.title = server.last_check?.error ?? "";
  }
}

function facts(id, pairs) {
  byId(id).replaceChildren(...pairs.filter(Boolean).flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

function showStore() {
  const { store } = status, isRedis = store.kind !== "memory";
  facts("store", [
    ["Where", isRedis ? store.location : "in this process"],
    ["State", element("span", { className: store.up ? "up" : "down" }, `${store.up ? "up" : "away"} since ${clock(store.since)}`)],
    ["Decisions", `${short(store.questions_per_second)}/s`],
    ["Keys in this process", short(store.memory_keys)],
    isRedis && ["Proxies that share it", String(store.processes)],
    isRedis && ["Rejected without asking it", short(store.known_refusals_total)],
    isRedis && ["While it was away", `${short(store.decided_without_total)} decided here, ${short(store.refused_without_total)} rejected with 503`],
    ...store.servers.map((server) => [element("span", { className: server.up ? "up" : "down" }, server.name), `p99 ${short(server.p99_ms)} ms`]),
    ["Errors", counts(store.errors) || "none"],
  ]);
}

function showConfig() {
  const { config } = status;
  const since = new Date(config.since).toLocaleString();
  byId("config").textContent = `Version ${config.version} of ${config.file}, in force since ${since}.` +
    (config.valid ? config.changed.length ? " The last reload changed:" : "" : " The file is wrong now, and this version stays in force:");
  const lines = [...(config.valid ? config.changed : config.errors), ...config.restart_needed.map((field) => `${field}: a restart applies it`)];
  byId("changes").replaceChildren(...lines.map((line) => element("li", {}, line)));
}

// Shows lines, each [kind, what, more]. The same lines are not shown anew: a screen reader would read them out again.
function say(...lines) {
  const text = lines.flat().join("\n");
  if (byId("state").lines === text) return;
  byId("state").lines = text;
  byId("state").replaceChildren(...lines.map(([kind, what, more]) =>
    element("li", { className: kind }, more ? element("strong", {}, what) : what, more ? ` ${more}` : "")));
}

function showState() {
  const { alarms, summary } = status, isRejecting = status.limits.some((limit) => limit.rejected_per_second > 0);
  const isGood = !isRejecting && !summary.includes("Refused for other reasons");
  document.title = [alarms[0]?.what, here(), "tidegate"].filter(Boolean).join(" – ");
  const lines = alarms.map((alarm) => [alarm.level === "error" ? "bad" : "", `${alarm.what} since ${clock(alarm.since)}.`, `${alarm.means} ${alarm.do}`]);
  say(...lines, ...(alarms.length && !isRejecting ? [] : [[isGood ? "good" : "", summary, ""]]));
}

// The port tells the processes of one machine apart.
const here = () => [status?.host ?? location.hostname, location.port].filter(Boolean).join(":");

function draw() {
  if (!status) return;
  const now = Date.parse(status.time), drawn = isHour ? points.hour : points.live;
  const [from, to] = [now - (isHour ? HOUR : LIVE), now];
  plots.decisions.show(OUTCOMES, drawn.map((point) => ({ time: point.time, values: counted(point, shown).decisions })), from, to, status.marks);
  const busy = status.routes.map((route) => route.name).filter((name) => status.routes.find((route) => route.name === name).total > 0).slice(0, HUES.length);
  const series = busy.map((name, at) => ({ name, label: name, hue: HUES[at] })).concat({ name: "", label: "others", hue: "var(--r5)" });
  plots.routes.show(series, drawn.map((point) => {
    const values = busy.map((name) => (point.routes[name] ?? NOTHING).requests);
    const others = Math.max(0, point.all.requests - sum(values));
    return { time: point.time, values: [...values, others < 0.01 ? 0 : others] };
  }), from, to, status.marks);
  plots.store.show([{ name: "p50", label: "p50", hue: "var(--r1)" }, { name: "p99", label: "p99", hue: "var(--r3)" }],
    drawn.map((point) => ({ time: point.time, values: point.store })), from, to, status.marks);
}

async function show(next) {
  status = next;
  addLive(status);
  // The rows of the processes come with the rest of the page, so that nothing moves.
  if (!fleet) await askFleet();
  byId("main").classList.remove("stale");
  byId("main").hidden = false;
  // The links of the footer cannot send a token.
  document.querySelector("footer").hidden = Boolean(token.get());
  const { open } = status.connections;
  byId("about").textContent = `${here()} · ${status.version} · up ${left(status.uptime_ms)} · ${open} ${open === 1 ? "connection" : "connections"}`;
  showState(); fillShown(); showLimits(); showTop(); showRoutes(); showUpstreams(); showStore(); showConfig();
  fillLimits(status.limits.filter((limit) => !limit.name.endsWith(":candidate")));
  showTiles();
  draw();
  refreshKey();
}

function showTiles() {
  // A limit does not see all requests. Then the first tile and the last two tiles count all requests.
  const whole = (point) => (shown.startsWith("limits/") ? point.all : counted(point, shown));
  const of = (point, at) => (at === 0 ? whole(point).requests : (at > DECISIONS.length ? whole(point) : counted(point, shown)).decisions[at - 1]);
  tiles.forEach((tile, at) => tile(points.live.map((point) => of(point, at))));
}

function span(hour) {
  isHour = hour;
  byId("live").setAttribute("aria-pressed", String(!hour));
  byId("hour").setAttribute("aria-pressed", String(hour));
  (hour ? loadHour() : Promise.resolve()).then(draw, () => {});
}

let isRunning = false;
async function run() {
  if (isRunning) return;
  isRunning = true;
  for (;;) {
    try {
      await loadHour();
      byId("login").hidden = true;
      showOverrides().catch(() => {});
      await follow(show);
      throw new Error("The stream ended.");
    } catch (error) {
      byId("main").classList.add("stale");
      if (error.status === 401) {
        byId("login").hidden = false;
        byId("main").hidden = true;
        say(["", token.get() ? WRONG_TOKEN : "This page needs a token."]);
        isRunning = false;
        return;
      }
      const why = error.status ? `tidegate says: ${error.message}.` : "No connection to tidegate.";
      say(["bad", `${why} Trying again each second.`]);
      document.title = `No connection – ${here()} – tidegate`;
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}

byId("shown").addEventListener("change", (event) => {
  shown = event.target.value;
  if (status) { showLimits(); showTop(); showRoutes(); showTiles(); draw(); }
});
byId("whose").addEventListener("change", showTop);
byId("live").addEventListener("click", () => span(false));
byId("hour").addEventListener("click", () => span(true));
byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  // A header cannot carry other letters.
  if (!/^[!-~]+$/.test(byId("token").value)) return say(["", WRONG_TOKEN]);
  token.set(byId("token").value);
  run();
});
setInterval(() => { if (isHour) span(true); }, 10000);
setInterval(() => { showOverrides().catch(() => {}); }, 10000);
run();
