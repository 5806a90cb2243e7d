// Where the figures come from: the stream, the last hour, and the points of both plots.

const LIVE = 120000, HOUR = 3600000;
const DECISIONS = [
  { name: "allowed", label: "allowed", hue: "var(--allowed)" },
  { name: "delayed", label: "held", hue: "var(--held)" },
  { name: "rejected", label: "rejected", hue: "var(--rejected)" },
  { name: "shadow", label: "shadowed", hue: "var(--shadow)" },
  { name: "marked", label: "marked", hue: "var(--marked)" },
];
const OUTCOMES = [...DECISIONS, { name: "failed", label: "failed", hue: "var(--failed)" }, { name: "refused", label: "refused", hue: "var(--refused)" }];

const token = {
  get: () => sessionStorage.getItem("token"),
  set: (value) => sessionStorage.setItem("token", value),
};

// Asks the endpoint. An error's text is shown to people.
async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (token.get()) headers.authorization = `Bearer ${token.get()}`;
  const answer = await fetch(path, { ...options, headers });
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  throw Object.assign(new Error(problem.detail ?? `${path} answered ${answer.status}`), { status: answer.status });
}

const asJson = async (path, options) => (await ask(path, options)).json();

// Reads the events of the stream, until it ends. EventSource cannot send a token.
async function follow(each) {
  const answer = await ask("/api/stream");
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      const line = event.split("\n").find((one) => one.startsWith("data:"));
      if (line) await each(JSON.parse(line.slice(5)));
    }
  }
}

// The points of the last minutes: each { time, all, limits, routes, store }. `limits` and `routes` have entries by name.
// Such an entry, and `all`, is { requests, decisions }. `decisions` has the order of OUTCOMES.
const points = { live: [], hour: [] };
const NOTHING = { requests: 0, decisions: OUTCOMES.map(() => 0) };

// Each request counts once: a failed request does not count as allowed or held. `of` returns the count of a name.
function outcomes(of) {
  let failed = of("failed");
  const passed = (count) => {
    const these = Math.min(count, failed);
    failed -= these;
    return count - these;
  };
  return [passed(of("allowed") + of("error")), passed(of("delayed")), of("rejected"), passed(of("shadow")), passed(of("marked")), of("failed"), of("refused")];
}

const byName = (list, count) => Object.assign(Object.create(null), Object.fromEntries(list.map((one) => [one.name, count(one)])));

function perSecond(status) {
  const of = (one) => (name) => one[`${name}_per_second`];
  const count = (one) => ({ requests: one.per_second, decisions: outcomes(of(one)) });
  return {
    time: Date.parse(status.time), all: count(status.requests),
    limits: byName(status.limits, (one) => ({ decisions: [...DECISIONS.map(({ name }) => of(one)(name)), 0, of(one)("refused")] })), routes: byName(status.routes, count),
    store: [status.store.p50_ms, status.store.p99_ms],
  };
}

function addLive(status) {
  const point = perSecond(status);
  points.live = points.live.filter((one) => one.time > point.time - LIVE - 5000 && one.time < point.time);
  points.live.push(point);
}

async function loadHour() {
  const history = await asJson("/api/history");
  const seconds = history.interval_ms / 1000, at = Object.fromEntries(history.counts.map((name, at) => [name, at]));
  points.hour = history.points.map(({ end_ms, limits, routes, other_routes, store_ms }) => {
    const of = (counts) => (name) => (counts[at[name]] ?? 0) / seconds;
    const count = (counts) => {
      const decisions = outcomes(of(counts));
      return { requests: sum(decisions), decisions };
    };
    const every = [...Object.values(routes), other_routes].map(count);
    const all = { requests: sum(every.map((one) => one.requests)), decisions: OUTCOMES.map((_, kind) => sum(every.map((one) => one.decisions[kind]))) };
    const each = (counted, read) => byName(Object.entries(counted).map(([name, counts]) => ({ name, counts })), ({ counts }) => read(counts));
    return {
      time: end_ms, all, store: store_ms, routes: each(routes, count),
      limits: each(limits, (counts) => ({ decisions: [...DECISIONS.map(({ name }) => of(counts)(name)), 0, of(counts)("refused")] })),
    };
  });
  if (!points.live.length) points.live = points.hour.filter((one) => one.time > Date.now() - LIVE);
}

const sum = (numbers) => numbers.reduce((all, one) => all + one, 0);

// The counts of a point for a limit ("limits/NAME"), for a route ("routes/NAME"), or for all requests ("").
function counted(point, shown) {
  if (!shown) return point.all;
  const [kind, name] = parted(shown);
  return point[kind][name] ?? NOTHING;
}

const parted = (shown) => [shown.slice(0, shown.indexOf("/")), shown.slice(shown.indexOf("/") + 1)];
