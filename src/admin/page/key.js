// One key: its bucket, and an override of its figures.

// The name of a bucket's size, by the algorithm. A limit of another algorithm has none that can be overridden.
const SIZES = { "token-bucket": "burst", "leaky-bucket": "queue" };

// The time between two looks at the key that is shown.
const REFRESH = 2000;

let limits = [];
let shownKey = null;

// Encodes a value as in a key: see "Keys in Redis" in the reference.
const encoded = (value) => [...value].map((letter) =>
  ("|%{}".includes(letter) || letter < " " || letter === "\x7f") ? encodeURIComponent(letter) : letter).join("");

const pathOf = ({ limit, key, query }, suffix = "") =>
  `/api/limits/${encodeURIComponent(limit)}/keys/${encodeURIComponent(key)}${suffix}${query}`;

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

// Shows a key that was chosen, and an empty form for an override of it.
async function lookUp(wanted) {
  shownKey = wanted;
  byId("override").reset();
  byId("bucket").ariaLive = "polite";
  await Promise.all([showBucket(), showWhy(wanted).catch(complain)]);
}

// The bucket changes while it is shown. A screen reader does not read it each time.
let asked = 0;
async function refreshKey() {
  if (!shownKey || byId("override").hidden || Date.now() - asked < REFRESH) return;
  byId("bucket").ariaLive = "off";
  await showBucket();
}

async function showBucket() {
  const wanted = shownKey;
  asked = Date.now();
  try {
    const bucket = await asJson(pathOf(wanted));
    if (wanted !== shownKey) return;
    const { remaining, burst } = bucket;
    const bar = element("div", {});
    bar.style.width = burst ? `${Math.max(0, Math.min(100, 100 * remaining / burst))}%` : "0%";
    if (remaining <= 0) bar.style.background = "var(--rejected)";
    const facts = [
      remaining === null ? "no bound" : `${short(remaining)} left of ${short(burst)}`,
      bucket.rate,
      bucket.retry_after_ms ? `the next passes in ${left(bucket.retry_after_ms)}` : remaining === 0 ? null : "the next passes now",
      bucket.reset_ms ? `full again in ${left(bucket.reset_ms)}` : null,
      bucket.override && (bucket.override.key === null ? "overridden for all keys" : "overridden"), bucket.plan && `plan ${bucket.plan}`, bucket.note,
      bucket.here ? "counted in this process alone, because Redis is away" : null,
    ];
    byId("bucket").replaceChildren(
      element("p", {}, element("strong", {}, bucket.limit), " ", element("code", {}, bucket.key || "all requests")),
      element("div", { className: "gauge" }, bar),
      element("p", { className: "quiet" }, facts.filter(Boolean).join(" · ")));
    byId("override").hidden = false;
    byId("rate").placeholder = bucket.rate ?? "";
    const size = SIZES[limits.find((one) => one.name === wanted.limit)?.algorithm];
    byId("size").hidden = !size;
    byId("size").firstElementChild.textContent = size ?? "";
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
    if (shownKey) await showBucket();
  } catch (error) {
    complain(error);
  }
  await showOverrides();
}

async function showOverrides() {
  const { overrides } = await asJson("/api/limits");
  const nameOf = (one) => `${one.limit} ${JSON.stringify(one.key)}`;
  const row = rows(byId("overrides"), overrides.length ? overrides.map(nameOf) : [""], (name, at) => {
    if (!name) return { row: element("li", { className: "quiet" }, "None.") };
    const { limit, key } = overrides[at];
    const end = element("button", { type: "button", className: "plain" }, "End");
    end.addEventListener("click", () => {
      if (key === null) return change(`/api/limits/${encodeURIComponent(limit)}/override`, "DELETE");
      shownKey = { limit, key, query: "" };
      return change(pathOf(shownKey, "/override"), "DELETE");
    });
    const figures = element("span", {}), until = element("span", { className: "quiet" });
    return { row: element("li", {}, element("strong", {}, limit), key === null ? "all keys" : element("code", {}, key), figures, until, end), figures, until };
  });
  for (const one of overrides) {
    const { figures, until } = row(nameOf(one));
    figures.textContent = [one.rate, one.queue !== null ? `queue ${one.queue}` : one.burst !== null && `burst ${one.burst}`].filter(Boolean).join(", ");
    until.textContent = [one.ends_in_ms && `for ${left(one.ends_in_ms)} more`, one.reason].filter(Boolean).join(" · ");
  }
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
  const value = (id) => byId(id).value.trim(), size = byId("size");
  const wanted = size.hidden ? "" : size.querySelector("input").value.trim();
  change(pathOf(shownKey, "/override"), "PUT", {
    rate: value("rate"),
    ...(wanted && { [size.firstElementChild.textContent]: Number(wanted) }),
    ...(value("for") && { for: value("for") }),
    ...(value("reason") && { reason: value("reason") }),
  });
});
byId("forget").addEventListener("click", () => change(pathOf(shownKey), "DELETE"));
