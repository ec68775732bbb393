// The sentence, the run as files, and the page-wide mark that a run is on (it dims Run and lights Stop).
const root = element.firstElementChild;
const line = make("p", "arena-status");
line.setAttribute("role", "status");
line.setAttribute("aria-live", "polite");
const files = make("div", "arena-files");
root.append(line, files);
let run = "";

const button = (className, text, kind, type, name) => {
  const made = make("button", className, text);
  made.type = "button";
  made.addEventListener("click", async () => {
    let content = "";
    try { content = await server.record(run, kind); } catch { /* said below */ }
    if (!content) return put(line, "The server no longer keeps this run.");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([content], { type }));
    link.download = name;
    link.click();
    URL.revokeObjectURL(link.href);
    const steps = (name) => kind === "json" && new RegExp(`^.*"${name}":(\\d+)`).exec(content)?.[1]; // in the first line
    const candidates = steps("candidates_left_out");
    const drafts = steps("trees_cut");
    const without = [
      candidates && `the pruned candidates of ${candidates} steps`,
      drafts && `the drafts that were not accepted of ${drafts} steps`,
    ].filter(Boolean);
    if (without.length) put(line, `Saved without ${without.join(" and ")}: the run would be too large to load again.`);
  });
  files.append(made);
  return made;
};
const save = button("arena-save", "Download run (JSON)", "json", "application/json", "dart-arena-run.json");
button("arena-csv", "Download steps (CSV)", "csv", "text/csv", "dart-arena-steps.csv");

function render(value) {
  if (!value || typeof value !== "object") return;
  run = value.run ?? "";
  put(line, value.text ?? "");
  save.dataset.run = value.running ? "" : run; // the run that a click saves
  files.hidden = !save.dataset.run;
  document.body.classList.toggle("arena-running", Boolean(value.running));
}
render(props.value);
watch("value", () => render(props.value));
