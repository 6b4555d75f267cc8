// What is large on the page is compressed: each figure, each table's rows, and Vega.
async function unpack(element) {
  const bytes = Uint8Array.from(atob(element.textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).text();
}

// Figures: one Vega view each, all listening to the family that the page focuses. Those in sight are drawn first.
const views = [];
const FOCUS = "family_focus";
let focused = null;
let vega = null;

function loadVega() {
  vega ??= unpack(document.getElementById("vega")).then((source) => {
    const script = document.createElement("script");
    script.textContent = source;
    document.head.append(script);
  });
  return vega;
}

async function draw(element) {
  try {
    await loadVega();
    const spec = JSON.parse(await unpack(element.closest("figure").querySelector(".spec")));
    const { view } = await vegaEmbed(element, spec, { actions: false, renderer: "svg", ast: false });
    const svg = element.querySelector("svg");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", element.parentElement.getAttribute("aria-label"));
    views.push(view);
    if (listens(view)) {
      view.addEventListener("click", (event, item) => {
        const family = item && item.datum && item.datum.family;
        if (family) focusFamily(family === focused ? null : family);
      });
      if (focused !== null) view.signal(FOCUS, focused).runAsync();
    }
  } catch (error) {
    element.textContent = "This figure could not be drawn: " + error.message;
    console.error(error);
  }
}

async function drawAll() {
  const waiting = new Set(document.querySelectorAll(".chart"));
  const inSight = new Set();
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) inSight[entry.isIntersecting ? "add" : "delete"](entry.target);
  }, { rootMargin: "400px" });
  waiting.forEach((element) => observer.observe(element));
  while (waiting.size) {
    await new Promise((resolve) => setTimeout(resolve));  // lets the reader scroll and click between two figures
    const next = [...waiting].find((element) => inSight.has(element)) ?? waiting.values().next().value;
    waiting.delete(next);
    await draw(next);
  }
  observer.disconnect();
  document.documentElement.dataset.drawn = String(views.length);
}

function listens(view) {
  try {
    view.signal(FOCUS);
    return true;
  } catch {
    return false; // this figure has no families
  }
}

function focusFamily(family) {
  focused = family;
  for (const button of document.querySelectorAll(".families button")) {
    button.setAttribute("aria-pressed", String((button.dataset.family || null) === family));
  }
  for (const view of views) {
    if (listens(view)) view.signal(FOCUS, family).runAsync();
  }
  [...tables.keys()].forEach(filterRows);
}

for (const button of document.querySelectorAll(".families button")) {
  button.addEventListener("click", () => focusFamily(button.dataset.family || null));
}

// Tables: search, sort by a column, download what is shown. Rows are unpacked when a table is opened.
const ROWS_AT_ONCE = 500;
const tables = new Map();

// Whoever needs the rows waits for the same unpacking: a key that is pressed meanwhile is not lost
function openTable(table) {
  if (!tables.has(table)) {
    const state = { order: null, kept: null, limit: ROWS_AT_ONCE };
    tables.set(table, state);
    state.ready = fillTable(table, state);
  }
  return tables.get(table).ready;
}

async function fillTable(table, state) {
  const rows = table.closest("details").querySelector(".rows");
  const { values, shown, reasons, links } = JSON.parse(await unpack(rows));
  rows.remove();
  const names = JSON.parse(table.dataset.columns);
  state.columns = values.map((column, index) => ({
    values: column,
    shown: (row) => (column[row] === null ? "—" : shown[index] ? shown[index][row] : column[row]),
    reason: (row) => reasons[`${row},${index}`],
    number: table.tHead.rows[0].cells[index].classList.contains("number"),
  }));
  state.links = links;
  state.family = names.indexOf("family");
  state.order = [...(values[0] ?? []).keys()];
  state.text = state.order.map((row) => state.columns.map((column) => column.shown(row)).join(" ").toLowerCase());
  filterRows(table);
}

function filterRows(table) {
  const state = tables.get(table);
  if (!state?.columns) return;
  const details = table.closest("details");
  const words = details.querySelector("input").value.toLowerCase().split(/\s+/).filter(Boolean);
  state.kept = state.order.filter(
    (row) =>
      (focused === null || state.family < 0 || state.columns[state.family].values[row] === focused) &&
      words.every((word) => state.text[row].includes(word)),
  );
  const all = state.order.length;
  details.querySelector(".matches").textContent = state.kept.length === all ? "" : `${state.kept.length} of ${all}`;
  showRows(table);
}

function showRows(table) {
  const state = tables.get(table);
  const body = document.createDocumentFragment();
  for (const row of state.kept.slice(0, state.limit)) {
    const line = document.createElement("tr");
    for (const column of state.columns) {
      const cell = line.insertCell();
      const link = column === state.columns[0] && state.links[row];
      const text = link ? cell.appendChild(document.createElement("a")) : cell;
      if (link) text.href = table.dataset.folder + link;
      text.textContent = column.shown(row);
      if (column.number) cell.className = "number";
      if (column.values[row] === null) cell.dataset.missing = "";
      if (column.reason(row)) cell.title = column.reason(row);
    }
    body.append(line);
  }
  table.tBodies[0].replaceChildren(body);
  table.closest("details").querySelector(".more-rows").hidden = state.kept.length <= state.limit;
}

async function sortBy(table, index) {
  await openTable(table);
  const state = tables.get(table);
  const header = table.tHead.rows[0].cells[index];
  const first = state.columns[index].number ? "descending" : "ascending";
  const second = first === "ascending" ? "descending" : "ascending";
  const direction = header.getAttribute("aria-sort") === first ? second : first;
  for (const cell of table.tHead.rows[0].cells) cell.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", direction);
  const sign = direction === "ascending" ? 1 : -1;
  const { values } = state.columns[index];
  state.order.sort((a, b) => {
    const [x, y] = [values[a], values[b]];
    if (x === null || y === null) return (x === null) - (y === null); // missing values last, either way
    return sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y)));
  });
  filterRows(table);
}

// A text that a spreadsheet would compute gets an apostrophe, as in the CSV files beside the page
function csvField(text) {
  if (/^[=+\-@]./.test(text) && Number.isNaN(Number(text))) text = `'${text}`;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

async function download(table, name) {
  await openTable(table);
  const state = tables.get(table);
  const field = (value, column, row) => (value === null ? "" : csvField(String(column.number ? value : column.shown(row))));
  const lines = [JSON.parse(table.dataset.columns).map(csvField).join(",")];
  for (const row of state.kept) {
    lines.push(state.columns.map((column) => field(column.values[row], column, row)).join(","));
  }
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/csv" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

for (const details of document.querySelectorAll("details.table")) {
  const table = details.querySelector("table");
  if (details.open) openTable(table);
  details.addEventListener("toggle", () => details.open && openTable(table));
  details.querySelector("input").addEventListener("input", () => filterRows(table));
  details.querySelector(".more-rows button").addEventListener("click", () => {
    tables.get(table).limit = Infinity;
    showRows(table);
  });
  const button = details.querySelector(".download");
  button.addEventListener("click", () => download(table, button.dataset.file));
  [...table.tHead.rows[0].cells].forEach((cell, index) => {
    cell.querySelector("button").addEventListener("click", () => sortBy(table, index));
  });
}

// Light and dark: the system's choice until the reader makes one.
const root = document.documentElement;
document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : window.matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});

drawAll();
