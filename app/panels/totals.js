// The totals of a run as a table. It is built when its rows or columns change; otherwise only cells' texts do.
const root = element.firstElementChild;
const scroll = make("div", "totals-scroll");
const table = make("table");
const caption = make("caption", "", "Totals");
const head = make("thead"), body = make("tbody");
const facts = make("dl", "totals-facts");
table.append(caption, head, body);
scroll.append(table);
root.append(scroll, facts);
root.hidden = true;

const open = new Set(); // names of the rows whose definition is shown
let built = "", told = "", cells = [];

function build(value) {
  const top = make("tr");
  const names = [make("th", "", "Figure"), ...value.columns.map((column) => make("th", column.engine, column.label))];
  names.forEach((name) => { name.scope = "col"; });
  top.append(...names);
  head.replaceChildren(top);
  cells = value.rows.map((row) => row.cells.map((_, place) => make("td", value.columns[place]?.engine)));
  body.replaceChildren(...value.rows.flatMap((row, place) => buildRow(row, place, value.columns.length)));
}

function buildRow(row, place, columns) {
  const line = make("tr");
  const name = make("th");
  name.scope = "row";
  const button = make("button", "totals-what", "?");
  button.type = "button";
  button.setAttribute("aria-label", `What is “${row.label}”?`);
  button.setAttribute("aria-controls", `totals-definition-${place}`);
  name.append(make("span", "", row.label), button);
  line.append(name, ...cells[place]);

  const below = make("tr", "totals-definition");
  const definition = make("td", "", row.definition);
  definition.colSpan = columns + 1;
  below.id = `totals-definition-${place}`;
  below.append(definition);
  const show = () => {
    below.hidden = !open.has(row.name);
    button.setAttribute("aria-expanded", !below.hidden);
  };
  button.addEventListener("click", () => {
    if (!open.delete(row.name)) open.add(row.name);
    show();
  });
  show();
  return [line, below];
}

function fill(cell, text, worse) {
  if (cell.textContent !== (worse ? `▼ ${text}` : text)) {
    cell.textContent = text;
    if (worse) {
      const mark = make("span", "", "▼ ");
      mark.setAttribute("role", "img");
      mark.setAttribute("aria-label", "worse than plain decoding:");
      cell.prepend(mark);
    }
  }
  cell.classList.toggle("worse", worse);
}

function render(value) {
  if (!value || typeof value !== "object") return;
  root.hidden = !value.rows.length;
  const shape = JSON.stringify([value.columns, value.rows.map((row) => [row.name, row.label, row.definition])]);
  if (shape !== built) build(value);
  built = shape;
  value.rows.forEach((row, place) => row.cells.forEach((text, column) => {
    fill(cells[place][column], text, Boolean(row.worse[column]));
  }));
  if (JSON.stringify(value.facts) === told) return;
  told = JSON.stringify(value.facts);
  facts.replaceChildren(...value.facts.map(([name, fact]) => {
    const chip = make("div");
    chip.append(make("dt", "", name), make("dd", "", String(fact)));
    return chip;
  }));
}

render(props.value);
watch("value", () => render(props.value));
