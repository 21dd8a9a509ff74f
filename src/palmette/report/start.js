// The event handlers of the report's page and its first display.
byId("run").addEventListener("change", (event) => { showRun(event.target.value); showWorkers(Number(event.target.value)); showOccupancy(Number(event.target.value)); showMemory(Number(event.target.value)); });
byId("question").addEventListener("change", (event) => showQuestion(Number(event.target.value)));
byId("previous").addEventListener("click", () => showQuestion(explorer.index - 1));
byId("next").addEventListener("click", () => showQuestion(explorer.index + 1));

function redraw() {
  if (explorer.tree) {
    view.measure();
    placeSlider();
    drawKv();
  }
  showPlots();
  showOccupancy(Number(byId("run").value || 0));
  showMemory(Number(byId("run").value || 0));
  showWorkers(Number(byId("run").value || 0));
}
let shownWidth = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== shownWidth) redraw();  // On a phone, scrolling hides the address bar, which changes the height only.
  shownWidth = innerWidth;
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

showHeader();
showTable();
showPlots();
runs.forEach((run, place) => byId("run").append(new Option(runLabel(run), place)));
showRun(0);
showWorkers(0);
showOccupancy(0);
showMemory(0);
