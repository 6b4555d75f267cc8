// Figures: one Vega view each, all listening to the family that the page focuses.
const specs = JSON.parse(document.getElementById("specs").textContent);
const views = [];
const FOCUS = "family_focus";
let focused = null;

async function drawAll() {
  for (const element of document.querySelectorAll(".chart")) {
    const spec = specs[element.dataset.figure];
    try {
      const { view } = await vegaEmbed(element, spec, { actions: false, renderer: "svg", ast: false });
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
  document.querySelectorAll("table").forEach(filterRows);
}

for (const button of document.querySelectorAll(".families button")) {
  button.addEventListener("click", () => focusFamily(button.dataset.family || null));
}

// Tables: search, sort by a column, download what is shown.
function filterRows(table) {
  const box = table.closest("details").querySelector("input");
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  const columns = JSON.parse(table.dataset.columns);
  const familyColumn = columns.indexOf("family");
  const rows = [...table.tBodies[0].rows];
  let shown = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    const inFamily = focused === null || familyColumn < 0 || row.cells[familyColumn].textContent === focused;
    row.hidden = !(inFamily && words.every((word) => text.includes(word)));
    shown += row.hidden ? 0 : 1;
  }
  const matches = table.closest("details").querySelector(".matches");
  matches.textContent = shown === rows.length ? "" : `${shown} of ${rows.length}`;
}

function sortValue(cell) {
  if ("missing" in cell.dataset) return null;
  return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
}

function sortBy(table, index) {
  const header = table.tHead.rows[0].cells[index];
  const first = header.classList.contains("number") ? "descending" : "ascending";
  const second = first === "ascending" ? "descending" : "ascending";
  const direction = header.getAttribute("aria-sort") === first ? second : first;
  for (const cell of table.tHead.rows[0].cells) cell.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", direction);
  const sign = direction === "ascending" ? 1 : -1;
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => {
    const x = sortValue(a.cells[index]);
    const y = sortValue(b.cells[index]);
    if (x === null || y === null) return (x === null) - (y === null); // missing values last, either way
    return sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y)));
  });
  table.tBodies[0].append(...rows);
}

function csvField(text) {
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function download(table, name) {
  const lines = [JSON.parse(table.dataset.columns).map(csvField).join(",")];
  for (const row of table.tBodies[0].rows) {
    if (row.hidden) continue;
    const values = [...row.cells].map((cell) => {
      const value = sortValue(cell);
      return value === null ? "" : csvField("value" in cell.dataset ? cell.dataset.value : String(value));
    });
    lines.push(values.join(","));
  }
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/csv" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

for (const table of document.querySelectorAll("details.table table")) {
  const details = table.closest("details");
  details.querySelector("input").addEventListener("input", () => filterRows(table));
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
