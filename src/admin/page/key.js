// One key: its bucket, and an override of its figures.

const byId = (id) => document.getElementById(id);
let limits = [];
let shownKey = null;

// A value as a key has it: see "Keys in Redis" of the reference.
const encoded = (value) => [...value].map((letter) =>
  ("|%{}".includes(letter) || letter < " " || letter === "\x7f") ? encodeURIComponent(letter) : letter).join("");

const pathOf = ({ limit, key, query }, behind = "") =>
  `/api/limits/${encodeURIComponent(limit)}/keys/${encodeURIComponent(key)}${behind}${query}`;

function chooseLimit(name) {
  byId("limit").value = name;
  const limit = limits.find((one) => one.name === name);
  byId("parts").replaceChildren(...(limit?.key ?? []).map((part) => {
    const value = element("input", { required: true, size: 18, autocomplete: "off" });
    const sources = part.split(" | ");
    const source = sources.length > 1
      ? element("select", {}, ...sources.map((name, at) => element("option", { value: at + 1 }, name)))
      : part;
    return element("label", { title: "- is a part that requests lack" }, source, value);
  }));
}

function fillLimits(all) {
  const names = all.map((limit) => `${limit.name} ${limit.key}`).join("\n");
  if (names === limits.map((limit) => `${limit.name} ${limit.key}`).join("\n")) return;
  const before = byId("limit").value;
  limits = all;
  byId("limit").replaceChildren(...all.map((limit) => element("option", { value: limit.name }, limit.name)));
  chooseLimit(all.some((limit) => limit.name === before) ? before : all[0]?.name ?? "");
}

const left = (ms) => {
  const seconds = Math.ceil(ms / 1000);
  if (seconds < 90) return `${seconds} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return `${minutes} min`;
  const hours = Math.round(minutes / 60);
  return hours < 48 ? `${hours} h` : `${Math.round(hours / 24)} days`;
};

async function lookUp(wanted) {
  shownKey = wanted;
  try {
    const bucket = await asJson(pathOf(wanted));
    const { remaining, burst } = bucket;
    const bar = element("div", {});
    bar.style.width = burst ? `${Math.max(0, Math.min(100, 100 * remaining / burst))}%` : "0%";
    if (remaining <= 0) bar.style.background = "var(--rejected)";
    const facts = [
      remaining === null ? "no bound" : `${short(remaining)} of ${short(burst)} left`,
      bucket.rate,
      bucket.retry_after_ms ? `the next passes in ${left(bucket.retry_after_ms)}` : remaining === 0 ? null : "the next passes now",
      bucket.reset_ms ? `as new in ${left(bucket.reset_ms)}` : null,
      bucket.override ? "overridden" : null,
    ];
    byId("bucket").replaceChildren(
      element("p", {}, element("strong", {}, bucket.limit), " ", element("code", {}, bucket.key || "all requests")),
      element("div", { className: "gauge" }, bar),
      element("p", { className: "quiet" }, facts.filter(Boolean).join(" · ")));
    byId("override").hidden = false;
    if (!byId("rate").value && bucket.rate) byId("rate").placeholder = bucket.rate;
  } catch (error) {
    complain(error);
    byId("override").hidden = true;
  }
}

function complain(error) {
  byId("bucket").replaceChildren(element("p", { role: "alert" }, error.message));
}

async function change(path, method, body) {
  try {
    await ask(path, { method, ...(body && { body: JSON.stringify(body), headers: { "content-type": "application/json" } }) });
    await lookUp(shownKey);
  } catch (error) {
    complain(error);
  }
  await showOverrides();
}

async function showOverrides() {
  const { overrides } = await asJson("/api/limits");
  byId("overrides").replaceChildren(...overrides.map((one) => {
    const end = element("button", { type: "button", className: "plain" }, "End");
    end.addEventListener("click", () => {
      shownKey = { limit: one.limit, key: one.key, query: "" };
      change(pathOf(shownKey, "/override"), "DELETE");
    });
    const figures = [one.rate, one.burst && `burst ${one.burst}`, one.queue && `queue ${one.queue}`].filter(Boolean).join(", ");
    const until = one.ends_in_ms ?? one.left_ms;
    return element("li", {}, element("strong", {}, one.limit), element("code", {}, one.key), figures,
      element("span", { className: "quiet" }, [until && `for ${left(until)} more`, one.reason].filter(Boolean).join(" · ")), end);
  }), ...(overrides.length ? [] : [element("li", { className: "quiet" }, "None.")]));
}

byId("limit").addEventListener("change", (event) => chooseLimit(event.target.value));
byId("lookup").addEventListener("submit", (event) => {
  event.preventDefault();
  const values = [...byId("parts").children].map((part) => {
    const { value } = part.querySelector("input"), source = part.querySelector("select")?.value ?? "1";
    if (value === "-") return "%-";
    return (source === "1" ? "" : `%${source}=`) + encoded(value);
  });
  lookUp({ limit: byId("limit").value, key: values.join("|"), query: "?plain" });
});
byId("override").addEventListener("submit", (event) => {
  event.preventDefault();
  const value = (id) => byId(id).value.trim();
  change(pathOf(shownKey, "/override"), "PUT", {
    rate: value("rate"),
    ...(value("burst") && { burst: Number(value("burst")) }),
    ...(value("for") && { for: value("for") }),
    ...(value("reason") && { reason: value("reason") }),
  });
});
byId("forget").addEventListener("click", () => change(pathOf(shownKey), "DELETE"));
