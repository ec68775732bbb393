// Shared by the panels. Text reaches the page through textContent only, so nothing a model writes can run.
const make = (tag, className = "", text = "") => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text) node.textContent = text;
  return node;
};
const put = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};
// Listen on the document for as long as this component is on the page.
const listen = (name, handler) => {
  const heard = (event) => {
    if (element.isConnected) handler(event.detail);
    else document.removeEventListener(name, heard);
  };
  document.addEventListener(name, heard);
};
// A function that does `work` soon however often it is asked, but leaves the page most of its time: between two
// rounds pass `least` ms and four times what the last one took.
const paced = (work, least) => {
  let asked = false, ended = 0, rest = 0;
  const round = () => {
    asked = false;
    const began = performance.now();
    work();
    ended = performance.now();
    rest = Math.max(least, 4 * (ended - began));
  };
  return () => {
    if (asked) return;
    asked = true;
    setTimeout(() => requestAnimationFrame(round), Math.max(0, ended + rest - performance.now()));
  };
};
const tell = (name, detail) => document.dispatchEvent(new CustomEvent(name, { detail }));
const visible = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "·");
