// What the page shows of each status.

let shown = "", isHour = false, status = null;
const plots = {
  decisions: new Plot(byId("plot-decisions"), { title: "Decisions a second", unit: "", stacked: true, height: 220 }),
  routes: new Plot(byId("plot-routes"), { title: "Requests a second by route", unit: "", stacked: true, height: 220 }),
  store: new Plot(byId("plot-store"), { title: "Latency of the store", unit: "ms", stacked: false, height: 110 }),
};
const WRONG_TOKEN = "This token is not the right one.";
const HUES = ["var(--r0)", "var(--r1)", "var(--r2)", "var(--r3)", "var(--r4)"];

const tiles = [{ name: "requests", label: "Requests", hue: "var(--accent)" }, ...DECISIONS].map((one) => {
  const number = element("strong", {}, "–"), spark = element("div", {});
  const label = one.label[0].toUpperCase() + one.label.slice(1);
  const tile = element("div", { className: "tile" }, element("p", {}, label), number, spark);
  tile.style.setProperty("--hue", one.hue);
  byId("tiles").append(tile);
  return (numbers) => {
    number.replaceChildren(short(numbers.at(-1) ?? null), element("small", {}, " /s"));
    spark.replaceChildren(sparkline(numbers.slice(-60), one.hue));
  };
});

function choose(name) {
  byId("shown").value = name;
  byId("shown").dispatchEvent(new Event("change"));
}

function numberCells(labels) {
  return labels.map((label) => {
    const cell = element("td", { className: "n" });
    cell.dataset.name = label;
    return cell;
  });
}

// What a candidate would have rejected. A limit without a candidate has none of it.
function tried({ figures, since_ms, requests, ...counts }) {
  if (!requests) return figures === "unlimited" ? "Its candidate would reject nothing: it is unlimited." : `Its candidate (${figures}) has seen no request in ${left(since_ms)}.`;
  const share = (count, percent) => (count && !percent ? "less than 0.001 %" : `${percent >= 1 ? Math.round(10 * percent) / 10 : percent} %`);
  const keys = (count) => `${count.toLocaleString("en")} ${count === 1 ? "key" : "keys"}`;
  return `Its candidate (${figures}) would have rejected ${share(counts.rejected, counts.rejected_percent)} of requests, ` +
    `${counts.keys_rejected.toLocaleString("en")} of ${keys(counts.keys)}, in ${left(since_ms)}. ` +
    `The limit: ${share(counts.limit_rejected, counts.limit_rejected_percent)}, ${keys(counts.limit_keys_rejected)}.`;
}

function showLimits() {
  const names = status.limits.flatMap(({ name, candidate }) => (candidate ? [name, `${name} tried`] : [name]));
  const row = rows(byId("limits").tBodies[0], names, (name) => {
    if (name.endsWith(" tried")) {
      const sentence = element("td", { colSpan: 8 });
      return { row: element("tr", { className: "tried" }, sentence), sentence };
    }
    const link = element("button", { type: "button", className: "link" }, name);
    link.addEventListener("click", () => choose(`limits/${name}`));
    const badge = element("span", { className: "badge" }), key = element("td", { className: "mono" }), figures = element("td", {});
    const numbers = numberCells(["allowed/s", "held/s", "rejected/s", "shadowed/s"]), spark = element("td", {});
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
    const most = limit.burst === null ? null : limit.algorithm === "concurrency" ? `${limit.burst} at once` : `burst ${limit.burst}`;
    figures.textContent = [limit.rate, most, limit.waiting ? `${limit.waiting} wait` : null].filter(Boolean).join(", ");
    DECISIONS.forEach(({ name }, at) => {
      numbers[at].textContent = short(limit[`${name}_per_second`]);
      numbers[at].classList.toggle("hot", name === "rejected" && limit.rejected_per_second > 0);
    });
    const at = limit.mode === "enforce" ? 2 : 3;
    spark.replaceChildren(sparkline(points.live.map((point) => (point.limits[limit.name] ?? NOTHING).decisions[at]), DECISIONS[at].hue));
    if (limit.candidate) row(`${limit.name} tried`).sentence.textContent = tried(limit.candidate);
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

function showKeys(place, hue, found, told) {
  const list = found.slice(0, 8), nameOf = ({ limit, key }) => `${limit.name} ${key.lookup ?? key.key}`;
  const row = rows(byId(place), list.length ? list.map(nameOf) : [""], (name, at) => {
    if (!name) return { row: element("li", { className: "quiet" }, told) };
    const { limit, key } = list[at], amount = element("span", {}), text = key.key || "all requests";
    const open = element("button", { type: "button", className: "link", title: `${text} of ${limit.name}` },
      element("code", {}, text), " ", element("span", { className: "quiet" }, limit.name));
    open.addEventListener("click", () => {
      const name = limit.name.replace(/:candidate$/, "");
      chooseLimit(name);
      lookUp({ limit: name, key: key.lookup ?? key.key, query: "" });
      byId("key").scrollIntoView({ block: "nearest" });
    });
    const made = element("li", {}, open, amount);
    made.style.setProperty("--hue", hue);
    return { row: made, amount };
  });
  for (const one of list) {
    const { row: made, amount } = row(nameOf(one));
    made.style.setProperty("--share", `${Math.round(100 * one.share)}%`);
    amount.textContent = one.amount;
  }
}

function showTop() {
  const all = status.limits.filter((limit) => !shown.startsWith("limits/") || shown === `limits/${limit.name}`);
  const rejected = all.flatMap((limit) => limit.rejected_keys.map((key) => ({ limit, key }))).sort((one, other) => other.key.count - one.key.count);
  const most = rejected[0]?.key.count ?? 1;
  showKeys("rejected", "var(--rejected)", rejected.map(({ limit, key }) => ({ limit, key, share: key.count / most, amount: String(key.count) })), "Nobody is rejected.");
  const over = Math.max(0, ...rejected.slice(0, 8).map(({ key }) => key.at_most_over));
  const minutes = Math.max(1, Math.round(status.rejected_keys_window_ms / 60000));
  byId("rejected-note").textContent = `In the last ${minutes} min, shadowed ones too. ` + (over ? `A count is too high by ${over} at most.` : "The counts are exact.");
  const near = all.flatMap((limit) => limit.near_keys.map((key) => ({ limit, key }))).sort((one, other) => one.key.share - other.key.share);
  showKeys("near", "var(--held)", near.map(({ limit, key }) => ({ limit, key, share: 1 - key.share, amount: `${short(key.remaining)} of ${short(key.burst)}` })), "Nobody is near a limit.");
}

function showRoutes() {
  const row = rows(byId("routes").tBodies[0], status.routes.map((route) => route.name), (name) => {
    const numbers = numberCells(["requests/s", "held/s", "rejected/s", "shadowed/s", "2xx", "3xx", "4xx", "5xx", "in all"]);
    const link = element("button", { type: "button", className: "link mono" }, name);
    link.addEventListener("click", () => choose(`routes/${name}`));
    return { row: element("tr", {}, element("th", { scope: "row" }, link), ...numbers), link, numbers };
  });
  for (const route of status.routes) {
    const by = route.statuses_per_second, { link, numbers } = row(route.name);
    link.setAttribute("aria-pressed", String(shown === `routes/${route.name}`));
    const cells = [route.per_second, route.delayed_per_second, route.rejected_per_second, route.shadow_per_second,
      by["2xx"], by["3xx"], by["4xx"], by["5xx"], route.total];
    cells.forEach((number, at) => { numbers[at].textContent = short(number); });
    numbers[2].classList.toggle("hot", route.rejected_per_second > 0);
    numbers[7].classList.toggle("hot", by["5xx"] > 0);
  }
}

function showUpstreams() {
  byId("upstreams").replaceChildren(...(status.upstreams.length ? status.upstreams.flatMap((upstream) => {
    const errors = Object.entries(upstream.errors).map(([reason, count]) => `${count} ${reason}`).join(", ");
    const figures = [`${short(upstream.answers_per_second)}/s`, upstream.p50_ms !== null && `p50 ${short(upstream.p50_ms)} ms`, upstream.p99_ms !== null && `p99 ${short(upstream.p99_ms)} ms`];
    const servers = upstream.servers.map((server) => element("li", {},
      element("span", { className: server.up ? "up" : "down" }, element("code", {}, server.url), server.up ? "" : " set aside"),
      element("span", {}, `${server.in_flight} in flight` + (server.retries_total ? `, ${server.retries_total} retried` : ""))));
    return [element("h3", {}, upstream.name, element("span", { className: "quiet" }, figures.filter(Boolean).join(" · "))),
      element("ul", { className: "rows" }, ...servers),
      errors ? element("p", { className: "quiet note" }, `Failed since the start: ${errors}`) : ""];
  }) : [element("p", { className: "quiet" }, "None.")]));
}

function facts(place, pairs) {
  byId(place).replaceChildren(...pairs.filter(Boolean).flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

function showStore() {
  const { store } = status, errors = Object.entries(store.errors).map(([kind, count]) => `${count} ${kind}`).join(", ");
  facts("store", [
    ["Where", store.kind === "memory" ? "in this process" : store.location],
    ["State", element("span", { className: store.up ? "up" : "down" }, `${store.up ? "answers" : "away"} since ${new Date(store.since).toLocaleTimeString()}`)],
    ["Questions", `${short(store.questions_per_second)}/s`],
    ["Buckets here", short(store.memory_keys)],
    store.kind !== "memory" && ["Processes", String(store.processes)],
    store.kind !== "memory" && ["Answered without", `${short(store.known_refusals_total)} known refusals, ${short(store.prefetched_keys)} keys in advance`],
    store.kind !== "memory" && ["While away", `${short(store.decided_without_total)} decided here, ${short(store.refused_without_total)} refused`],
    ...store.servers.map((server) => [element("span", { className: server.up ? "up" : "down" }, server.name), `p99 ${short(server.p99_ms)} ms`]),
    ["Errors", errors || "none"],
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

function say(kind, text) {
  byId("state").className = `state ${kind}`;
  if (byId("state").textContent !== text) byId("state").textContent = text;
}

function showState() {
  const down = status.upstreams.flatMap((upstream) => upstream.servers.filter((server) => !server.up).map((server) => server.url));
  const rejecting = status.limits.filter((limit) => limit.rejected_per_second > 0).map((limit) => limit.name);
  const faults = [
    status.draining && "The process is ending and finishes what is under way.",
    !status.config.valid && "proxy.toml is wrong. The version from before stays in force.",
    !status.store.up && `The store has been away for ${left(status.store.since_ms)}. Each limit decides as on_store_error says.`,
    down.length && `Set aside: ${down.join(", ")}.`,
  ].filter(Boolean);
  if (faults.length) return say("bad", faults.join(" "));
  say(rejecting.length ? "" : "good", rejecting.length ? `Rejecting now: ${rejecting.join(", ")}.` : "All is well. No limit rejects.");
}

function draw() {
  if (!status) return;
  const now = Date.parse(status.time), drawn = isHour ? points.hour : points.live;
  const [from, to] = [now - (isHour ? HOUR : LIVE), now];
  plots.decisions.show(DECISIONS, drawn.map((point) => ({ time: point.time, values: counted(point, shown).decisions })), from, to);
  const busy = status.routes.map((route) => route.name).filter((name) => status.routes.find((route) => route.name === name).total > 0).slice(0, HUES.length);
  const series = busy.map((name, at) => ({ name, label: name, hue: HUES[at] })).concat({ name: "", label: "others", hue: "var(--r5)" });
  plots.routes.show(series, drawn.map((point) => {
    const values = busy.map((name) => (point.routes[name] ?? NOTHING).requests);
    const others = Math.max(0, point.all.requests - sum(values));
    return { time: point.time, values: [...values, others < 0.01 ? 0 : others] };
  }), from, to);
  plots.store.show([{ name: "p50", label: "p50", hue: "var(--r1)" }, { name: "p99", label: "p99", hue: "var(--r3)" }],
    drawn.map((point) => ({ time: point.time, values: point.store })), from, to);
}

function show(next) {
  status = next;
  addLive(status);
  byId("main").classList.remove("stale");
  byId("main").hidden = false;
  // A link sends no token.
  document.querySelector("footer").hidden = Boolean(token.get());
  const { open } = status.connections;
  byId("about").textContent = `${status.version} · up ${left(status.uptime_ms)} · ${open} ${open === 1 ? "connection" : "connections"}`;
  showState(); fillShown(); showLimits(); showTop(); showRoutes(); showUpstreams(); showStore(); showConfig();
  fillLimits(status.limits.filter((limit) => !limit.name.endsWith(":candidate")));
  showTiles();
  draw();
  refreshKey();
}

function showTiles() {
  // A limit's decisions are not all requests.
  const requests = (point) => (shown.startsWith("limits/") ? point.all : counted(point, shown)).requests;
  tiles.forEach((tile, at) => tile(points.live.map((point) => (at === 0 ? requests(point) : counted(point, shown).decisions[at - 1]))));
}

function span(hour) {
  isHour = hour;
  byId("live").setAttribute("aria-pressed", String(!hour));
  byId("hour").setAttribute("aria-pressed", String(hour));
  (hour ? loadHour() : Promise.resolve()).then(draw, () => {});
}

function colours(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  byId("theme").textContent = `Colours: ${theme}`;
  localStorage.setItem("theme", theme);
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
        say("", token.get() ? WRONG_TOKEN : "This page needs a token.");
        isRunning = false;
        return;
      }
      const why = error.status ? `tidegate says: ${error.message}.` : "No connection to tidegate.";
      say("bad", `${why} Trying again each second.`);
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}

byId("shown").addEventListener("change", (event) => {
  shown = event.target.value;
  if (status) { showLimits(); showTop(); showRoutes(); showTiles(); draw(); }
});
byId("live").addEventListener("click", () => span(false));
byId("hour").addEventListener("click", () => span(true));
byId("theme").addEventListener("click", () => {
  const order = ["system", "light", "dark"];
  colours(order[(order.indexOf(localStorage.getItem("theme") ?? "system") + 1) % 3]);
});
byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  // A header carries no other letters.
  if (!/^[!-~]+$/.test(byId("token").value)) return say("", WRONG_TOKEN);
  token.set(byId("token").value);
  run();
});
colours(localStorage.getItem("theme") ?? "system");
setInterval(() => { if (isHour) span(true); }, 10000);
setInterval(() => { showOverrides().catch(() => {}); }, 10000);
run();
