// The header and the table of results of searches.
const { rows, curves } = data;
const runLabel = ({ config: { search, seed }, name }) =>
  `${search.strategy} ${search.width}, seed ${seed}${name === `${search.strategy}-${search.width}-seed${seed}` ? "" : ` · ${name}`}`;

function showHeader() {
  const { config } = runs[0];
  byId("title").textContent = runs.length === 1
    ? `${config.search.strategy} at width ${config.search.width}`
    : `${joined([...new Set(rows.map((row) => row.strategy))])}, ${plural(runs.length, "run")}`;
  const setup = ({ config: { task, policy, reward } }) => `${task.name}; policy ${policy.model}, reward model ${reward.model ?? "none"}, temperature ${policy.temperature}`;
  const setups = [...new Set(runs.map(setup))];
  byId("about").textContent = setups.join(" | ") + (setups.length > 1 ? ". These runs differ in task, models or temperature: compare with care." : "");
  showSettings();
}

function withInterval(row, vote) {
  const cell = element("td", share(row[vote]));
  cell.append(element("small", `${row[`${vote}_low`].toFixed(2)} – ${row[`${vote}_high`].toFixed(2)}`));
  return cell;
}

function showTable() {
  const headings = ["strategy", "width", "questions", "one leaf", "best", "majority", "weighted", "any leaf", "best_of_n, same tokens", "tokens", "KV mean", "KV peak", "KV unshared", "seconds"];
  const onServers = rows.some((row) => row.server_hit_share !== null);
  if (onServers) headings.push("servers' cache hits", "pre\u00ademptions");
  byId("table").classList.toggle("wide", onServers);
  const lines = rows.map((row) => [
    row.strategy, String(row.width), count(row.questions),
    share(row.single), ...["best", "majority", "weighted"].map((vote) => withInterval(row, vote)), share(row.any), share(row.bon_same_tokens),
    count(row.generated_tokens), count(row.mean_kv_tokens), count(row.peak_kv_tokens), count(row.peak_separate_kv_tokens), row.seconds.toFixed(1),
    ...(onServers ? [share(row.server_hit_share), row.server_preemptions === null ? "" : count(row.server_preemptions)] : []),
  ]);
  byId("table").append(tableOf(headings, lines));
  const seeds = Math.max(...rows.map((row) => row.seeds));
  const measured = curves.length
    ? `best_of_n, same tokens: the accuracy of best_of_n (${joined([...new Set(rows.map((row) => row.vote))])} vote) with as many branches as generate the row's number of tokens, interpolated between measured points; blank outside of their range.`
    : "There is no best_of_n run to compare with at the same number of tokens.";
  byId("table-note").textContent = `Accuracy with its 95% interval${seeds > 1 ? `, ${seeds} seeds pooled` : ""}. One leaf: a leaf taken at random. Any leaf: at least one leaf is correct, the most a vote can reach. Tokens are generated tokens of a question, pruned branches included. KV counts the tokens that the cache holds for one question's tree at the end of a wave, each distinct prefix once, so that equal steps count once: mean over waves, and peak of the largest tree; unshared is the peak if every branch kept its own copy of its path. ${onServers ? "Servers' cache hits: the share of prompt tokens that the policy's servers found in their prefix caches, by their own counts. " : ""}${measured}`;
}
