// The presenter's mode (large type, dark, the prompts as one list) and the keyboard: both live in the browser alone.
const root = element.firstElementChild;
const KEYS = [
  // [shown, what it does, button, the key event that does it]
  ["Ctrl + Enter", "run the race", "run", (e) => e.code === "Enter" && command(e) && !e.shiftKey],
  ["Ctrl + Shift + Enter", "follow up", "follow", (e) => e.code === "Enter" && command(e) && e.shiftKey],
  ["Alt + Shift + R", "regenerate", "regenerate", (e) => e.code === "KeyR" && alternate(e)],
  ["Esc", "stop", "stop", (e) => e.code === "Escape" && underWay() && !listIsOpen()],
  ["Alt + Shift + C", "clear", "clear", (e) => e.code === "KeyC" && alternate(e)],
  ["Alt + Shift + L", "copy a link to this page", "link", (e) => e.code === "KeyL" && alternate(e)],
  ["Alt + Shift + P", "presenter’s mode", "presenter", (e) => e.code === "KeyP" && alternate(e)],
];
const underWay = () => document.body.classList.contains("arena-running") || document.querySelector("#status .progress-text");
const listIsOpen = () => document.querySelector("[role=listbox]"); // which Esc closes
const command = (event) => (event.ctrlKey || event.metaKey) && !event.altKey;
const alternate = (event) => event.altKey && event.shiftKey && !event.ctrlKey && !event.metaKey;

const presenter = make("button", "toolbar-button", "Presenter’s mode");
presenter.type = "button";
presenter.id = "presenter";
const said = make("span", "toolbar-said");
said.setAttribute("role", "status");
const help = make("details", "toolbar-keys");
help.append(make("summary", "", "Keyboard"));
const list = make("dl");
for (const [shown, does] of KEYS) list.append(make("dt", "", shown), make("dd", "", does));
list.append(make("dt", "", "← →, ↑ ↓"), make("dd", "", "in a draft tree: walk its steps, its nodes"));
help.append(list);
root.append(presenter, help, said);

let before = null; // was the page dark before the presenter's mode?
function present(on) {
  const { classList } = document.body;
  if (on === classList.contains("presenter")) return;
  if (on) before = classList.contains("dark");
  classList.toggle("presenter", on);
  classList.toggle("dark", on || Boolean(before));
  presenter.setAttribute("aria-pressed", on);
}
presenter.setAttribute("aria-pressed", document.body.classList.contains("presenter"));
presenter.addEventListener("click", () => present(!document.body.classList.contains("presenter")));
if (new URLSearchParams(location.hash.slice(1)).has("presenter")) present(true);
// Another link opened in this tab: what it leaves out stands at its default.
window.addEventListener("hashchange", () => { if (element.isConnected) location.reload(); });

const heard = (event) => {
  if (!element.isConnected) { document.removeEventListener("keydown", heard, true); return; }
  if (event.repeat || event.isComposing) return;
  const hit = KEYS.find(([, , , matches]) => matches(event));
  const button = hit && document.getElementById(hit[2]);
  if (!button || button.disabled) return;
  event.preventDefault();
  event.stopPropagation();
  button.click();
};
document.addEventListener("keydown", heard, true);

let fading = 0;
listen("arena:told", (text) => {
  put(said, text);
  clearTimeout(fading);
  fading = setTimeout(() => put(said, ""), 6000);
});
