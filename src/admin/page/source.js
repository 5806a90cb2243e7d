// Where the figures come from: the stream, the last hour, and the points of both plots.

const LIVE = 120000, HOUR = 3600000;
const DECISIONS = [
  { name: "allowed", label: "allowed", hue: "var(--allowed)" },
  { name: "delayed", label: "held", hue: "var(--held)" },
  { name: "rejected", label: "rejected", hue: "var(--rejected)" },
  { name: "shadow", label: "shadowed", hue: "var(--shadow)" },
];

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
      if (line) each(JSON.parse(line.slice(5)));
    }
  }
}

// The points of the last minutes: each { time, limits, routes, requests, store }, by name.
const points = { live: [], hour: [] };

function perSecond(status) {
  const time = Date.parse(status.time);
  const limits = Object.create(null), routes = Object.create(null);
  for (const limit of status.limits) {
    limits[limit.name] = DECISIONS.map(({ name }) => limit[`${name}_per_second`]);
  }
  for (const route of status.routes) routes[route.name] = route.per_second;
  return { time, limits, routes, requests: status.requests.per_second, store: [status.store.p50_ms, status.store.p99_ms] };
}

function addLive(status) {
  const point = perSecond(status);
  points.live = points.live.filter((one) => one.time > point.time - LIVE - 5000 && one.time < point.time);
  points.live.push(point);
}

async function loadHour() {
  const history = await asJson("/api/history");
  const seconds = history.interval_ms / 1000;
  points.hour = history.ends_ms.map((time, at) => {
    const limits = Object.create(null), routes = Object.create(null);
    for (const limit of history.limits) {
      limits[limit.name] = DECISIONS.map(({ name }) => (limit[name][at] ?? 0) / seconds);
    }
    for (const route of history.routes) routes[route.name] = (route.requests[at] ?? 0) / seconds;
    if (history.other_routes[at]) routes["other routes"] = history.other_routes[at] / seconds;
    const requests = Object.values(routes).reduce((all, one) => all + one, 0);
    return { time, limits, routes, requests, store: [history.store_p50_ms[at], history.store_p99_ms[at]] };
  });
  if (!points.live.length) points.live = points.hour.filter((one) => one.time > Date.now() - LIVE);
}

// The decisions of a limit, or of all.
function decisions(point, limit) {
  if (limit) return point.limits[limit] ?? [0, 0, 0, 0];
  return DECISIONS.map((_, at) => Object.values(point.limits).reduce((all, one) => all + one[at], 0));
}
