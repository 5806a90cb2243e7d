// The kept rejections of the key that is shown: why each was rejected, and what would have let it pass.

const CHANGES = {
  wait_ms: (wait) => `${left(wait)} later`,
  burst: (burst) => `if the limit held ${short(burst)}`,
  plan: (plan) => `with the plan ${plan}`,
  cost: (cost) => `at a cost of ${short(cost)}`,
};

const changed = (change) => Object.entries(change).map(([name, value]) => CHANGES[name](value)).join(" ");

async function showWhy({ limit, key, query }) {
  const told = await asJson(`/api/why?limit=${encodeURIComponent(limit)}&key=${encodeURIComponent(key)}${query.replace("?", "&")}`);
  byId("why").replaceChildren(...told.rejections.slice(0, 10).map((one) => {
    const wait = one.retry_after_ms === null ? "no such request ever passes" : `told to wait ${left(one.retry_after_ms)}`;
    const facts = [one.name, one.plan && `plan ${one.plan}`, one.from, one.client, [one.rate, one.burst !== null && `holds ${one.burst}`].filter(Boolean).join(", "),
      `cost ${one.cost}, ${short(one.remaining)} left`, wait];
    const passes = one.would_pass.length ? `Would have passed ${one.would_pass.map(changed).join(", or ")}.` : "No change of these figures would have let it pass.";
    return element("li", { className: "why" }, element("span", { className: "quiet" }, clock(one.time)), element("code", {}, `${one.method} ${one.path}`),
      element("span", {}, passes), element("span", { className: "quiet" }, facts.filter(Boolean).join(" · ")), element("code", { className: "quiet" }, one.id));
  }));
  byId("h-why").hidden = !told.rejections.length;
}
