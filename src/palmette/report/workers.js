// The table of a run's workers: what each did, the most it held, and why one was lost.
function showWorkers(place) {
  const { workers } = runs[place];
  byId("workers").hidden = !workers.length;
  if (!workers.length) return;
  const lines = workers.map((worker) => [
    worker.name, worker.node, count(worker.questions), count(worker.tokens), worker.seconds.toFixed(1),
    worker.seconds ? count(Math.round(worker.tokens / worker.seconds)) : "", bytesText(worker.peak), worker.lost,
  ]);
  byId("workers-table").replaceChildren(tableOf(["worker", "machine", "questions", "tokens", "seconds", "tokens/s", "peak", "lost because"], lines));
  const lost = workers.filter((worker) => worker.lost).length;
  byId("workers-note").textContent = `${runs.length > 1 ? `${runLabel(runs[place])}. ` : ""}`
    + `${lost ? `${plural(lost, "worker was", "workers were")} lost: what they had not finished was asked again, with the same trees. ` : ""}`
    + "Seconds are those from when a worker's models were loaded.";
}
