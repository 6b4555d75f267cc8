// What a fold holds is in a script beside the page, read when the first fold opens: window.lmValidity[name] = packed.
// Pages of `--single-file` have set it already.
const at = document.getElementById("data");
const parts = {};

function load(name, source) {
  parts[name] ??= (window.lmValidity?.[name] !== undefined || !source
    ? Promise.resolve()
    : new Promise((resolve, reject) => {
        const script = document.createElement("script");
        script.src = source;
        script.onload = resolve;
        script.onerror = () => reject(new Error(`${source} is not beside this page`));
        document.head.append(script);
      })
  ).then(() => window.lmValidity[name]);
  return parts[name];
}

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).text();
}

const content = async (name) => JSON.parse(await unpack((await load("data", at.dataset.source))[name]));

// Tables: search, sort by a column, download what is shown. Rows are read when a table is first seen.
const ROWS_AT_ONCE = 500;
const tables = new Map();

function openTable(table) {
  if (!tables.has(table)) tables.set(table, { ready: fill(table) });
  return tables.get(table).ready;
}

async function fill(table) {
  await null;
  const state = tables.get(table);
  const { values, shown, reasons } = await content(`table ${table.dataset.name}`);
  Object.assign(state, { kept: null, limit: ROWS_AT_ONCE });
  state.columns = values.map((column, index) => ({
    values: column,
    shown: (row) => (column[row] === null ? "—" : shown[index] ? shown[index][row] : column[row]),
    reason: (row) => reasons[`${row},${index}`],
    number: table.tHead.rows[0].cells[index].classList.contains("number"),
  }));
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
      cell.textContent = column.shown(row);
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

// Tables that no closed fold hides are filled; so are those that a fold hides when it opens.
async function reveal() {
  const open = (element) => !element.closest("details:not([open])");
  await Promise.all([...document.querySelectorAll("details.table table")].filter(open).map(openTable));
  document.documentElement.dataset.drawn = "yes";
}

for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", reveal);

// Printing: all folds are open, with tables of at most so many rows. Afterwards they are closed.
const ROWS_PRINTED = 100;

async function openWhole() {
  const closed = [...document.querySelectorAll("details:not([open])")];
  for (const details of closed) details.open = true;
  await reveal();
  for (const [table, state] of tables) {
    const left = (state.kept?.length ?? 0) - ROWS_PRINTED;
    if (left <= 0) continue;
    state.limit = ROWS_PRINTED;
    showRows(table);
    table.dataset.left = `${left} more rows are in the CSV file of this table.`;
  }
  return closed;
}

document.getElementById("print").addEventListener("click", async () => {
  const closed = await openWhole();
  window.print();
  for (const details of closed) details.open = false;
  for (const [table, state] of tables) {
    state.limit = ROWS_AT_ONCE;
    if (state.columns) showRows(table);
  }
});
if (location.hash === "#print") openWhole();

// A link to what a fold hides opens it.
function openTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let fold = target && target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  if (target) target.scrollIntoView();
}
addEventListener("hashchange", openTarget);
openTarget();

// The matrix of benchmarks: rows sorted by a column, what was not measured last.
for (const table of document.querySelectorAll("table.m")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, index) => {
    head.querySelector("button")?.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "descending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = (row) => row.cells[index].dataset.v;
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        const order = isNaN(x) ? x.localeCompare(y) : x - y;
        return up ? order : -order;
      });
      table.tBodies[0].append(...rows);
      for (const group of rows.filter((row) => row.dataset.group)) group.after(...rows.filter((row) => row.dataset.in === group.dataset.group));
    });
  });
}

// A long matrix: groups that open, a search, and filters by an answer (`#show=apart:yes` chooses one).
for (const tools of document.querySelectorAll(".tools[data-table]")) {
  const rows = [...document.querySelectorAll("table.m tbody tr")];
  const groups = new Map(rows.filter((row) => row.dataset.group).map((row) => [row.dataset.group, row.querySelector("button")]));
  const [input, output, chips] = ["input", "output", "button"].map((name) => [...tools.querySelectorAll(name)]);
  const all = output[0].textContent;
  let filter = "";
  const show = () => {
    const words = input[0].value.toLowerCase();
    const some = Boolean(words || filter);
    const found = (row) => `${row.dataset.in} ${row.dataset.name}`.toLowerCase().includes(words) && (!filter || row.dataset.answers.includes(`${filter};`));
    const open = (row) => some || !row.dataset.in || groups.get(row.dataset.in).getAttribute("aria-expanded") === "true";
    for (const row of rows) row.hidden = row.dataset.group ? some : !(found(row) && open(row));
    const benchmarks = rows.filter((row) => !row.dataset.group);
    output[0].textContent = some ? `${benchmarks.filter((row) => !row.hidden).length} of ${benchmarks.length} ${tools.dataset.things ?? "benchmarks"}` : all;
    for (const chip of chips) chip.setAttribute("aria-pressed", String(chip.dataset.filter === filter));
  };
  for (const chip of chips) {
    chip.addEventListener("click", () => {
      filter = filter === chip.dataset.filter ? "" : chip.dataset.filter;
      show();
    });
  }
  for (const button of groups.values()) {
    button.setAttribute("aria-expanded", "false");
    button.addEventListener("click", () => {
      button.setAttribute("aria-expanded", String(button.getAttribute("aria-expanded") === "false"));
      show();
    });
  }
  input[0].addEventListener("input", show);
  if (location.hash.startsWith("#show=")) filter = decodeURIComponent(location.hash.slice(6));
  show();
}

// A carpet of ranks, or of pairs, reads out the cell under the pointer, or the one that the arrow keys reach.
const filled = (template, values) => template.replace(/\{(\w+)\}/g, (_, name) => values[name]);

function saidOfPair({ rows, pairs, says }, row, column) {
  const [a, b] = pairs[row][column] ? [row, column] : [column, row];
  const [lead, ...numbers] = pairs[a][b].split("|");
  if (row === column) return rows[row];
  if (!lead) return `${rows[row]} and ${rows[column]}: no test.`;
  const [more, p, high, low] = numbers.reverse();
  const values = { a: rows[a], b: rows[b], lead, p, interval: filled(says.interval, { low, high }) };
  values.more = more === "nan" ? "" : filled(says.more, { more: Number(more).toLocaleString("en") });
  return filled(says[Number(p) < 0.05 ? "better" : "not known"], values);
}

for (const svg of document.querySelectorAll("svg.carpet[data-ranks]")) {
  const data = JSON.parse(svg.dataset.ranks);
  const { rows, columns, ranks, label } = data;
  const image = svg.querySelector("image");
  const [left, top, width, height] = ["x", "y", "width", "height"].map((name) => Number(image.getAttribute(name)));
  const cursor = svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "rect"));
  cursor.setAttribute("class", "cursor");
  const picture = svg.closest(".picture");
  const said = picture.querySelector(".read") ?? picture.appendChild(document.createElement("p"));
  said.className = "read";
  said.setAttribute("aria-live", "polite");
  said.textContent = `Point at a cell, or use the arrow keys, to read a ${ranks ? "rank" : "pair"}.`;
  let row = 0;
  let column = 0;
  const hide = () => (cursor.style.display = "none");
  const say = () => {
    const place = { x: left, width, y: top + (row * height) / rows.length, height: height / rows.length };
    for (const [name, value] of Object.entries(place)) cursor.setAttribute(name, value);
    cursor.style.display = "";
    if (!ranks) return (said.textContent = saidOfPair(data, row, column));
    const all = ranks[row].filter((rank) => rank !== null);
    said.textContent =
      `${rows[row]} on ${columns[column]}, ${label}: rank ${ranks[row][column] ?? "not known"} of ${rows.length}. ` +
      `All ${all.length} ranks of this model: ${Math.min(...all)} to ${Math.max(...all)}.`;
  };
  const point = (event) => {
    const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const [across, down] = [(x - left) / width, (y - top) / height];
    if (across < 0 || down < 0 || across >= 1 || down >= 1) return;
    [row, column] = [Math.floor(down * rows.length), Math.floor(across * columns.length)];
    say();
  };
  hide();
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("focus", say);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Enter: [0, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    row = Math.min(rows.length - 1, Math.max(0, row + step[0]));
    column = Math.min(columns.length - 1, Math.max(0, column + step[1]));
    say();
  });
}

// What a mark or a row says (data-say) stands beside it under the pointer, the finger, or the focus of the keyboard.
const tip = document.createElement("div");
tip.id = "tip";
tip.setAttribute("role", "status");
document.body.append(tip);

function say(element, words) {
  tip.textContent = words ?? "";
  if (!words) return;
  const { left, bottom, width } = element.getBoundingClientRect();
  const middle = left + Math.min(width, innerWidth) / 2 - tip.offsetWidth / 2;
  tip.style.left = `${scrollX + Math.max(8, Math.min(middle, document.documentElement.clientWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${scrollY + bottom + 4}px`;
}

// A cell of the table of benchmarks says its column's question, what its picture shows, its answer, and why that is
// not known
for (const cell of document.querySelectorAll("table.m td.c")) {
  const words = (text) => text?.trim().replace(/\s+/g, " ").replace(/\.$/, "");
  const answer = cell.querySelector("svg") && !cell.querySelector(".mk") ? "" : cell.textContent;
  const head = cell.closest("table").tHead.rows[0].cells[cell.cellIndex].querySelector("button").textContent;
  const said = [cell.querySelector("svg")?.getAttribute("aria-label"), answer, cell.dataset.why].map(words).filter(Boolean);
  if (said.length) cell.dataset.say = `${words(head)} ${said.map((text) => `${text[0].toUpperCase()}${text.slice(1)}.`).join(" ")}`;
}

for (const element of document.querySelectorAll("[data-say]")) {
  for (const event of ["pointerenter", "pointerdown", "focus"]) element.addEventListener(event, () => say(element, element.dataset.say));
  for (const event of ["pointerleave", "blur"]) element.addEventListener(event, () => say(element, ""));
}
for (const name of document.querySelectorAll("[data-row]")) {
  const row = name.closest("tr");
  const words = [...row.querySelectorAll("[data-say]")].map((cell) => cell.dataset.say).join("\n");
  name.addEventListener("focus", () => name.matches(":focus-visible") && say(row, words));
  name.addEventListener("blur", () => say(row, ""));
}
addEventListener("keydown", (event) => event.key === "Escape" && say(tip, ""));

// A figure's sentence, with its interval and scope, for another text.
for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard?.writeText(button.dataset.copy).catch(() => {}); // a browser that lets no page do this
    say(button, button.dataset.copy);
  });
  button.addEventListener("blur", () => say(button, ""));
}

// A figure that has no file beside the page is saved as it is drawn, with its style.
for (const button of document.querySelectorAll("[data-svg]")) {
  button.addEventListener("click", () => {
    const figure = button.closest("section").querySelector(".plot, svg");
    const { width, height } = figure.getBoundingClientRect();
    const style = document.querySelector("style").textContent;
    const drawn = new XMLSerializer().serializeToString(figure);
    const text = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height + 30}"><foreignObject width="100%" height="100%"><div xmlns="http://www.w3.org/1999/xhtml"><style>${style.replaceAll("&", "&amp;").replaceAll("<", "&lt;")}</style>${drawn}</div></foreignObject></svg>`;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
    link.download = `${button.dataset.svg}.svg`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}

// Curves: the one under the pointer, or that the arrow keys reach, says its name, its value and where it is.
for (const svg of document.querySelectorAll("svg.lines")) {
  const { x, y, log, unit } = JSON.parse(svg.dataset.axes);
  const lines = [...svg.querySelectorAll("polyline[data-n]")].map((mark) => ({
    mark,
    at: [...mark.points].map((point) => [point.x, point.y]),
  }));
  if (!lines.length) continue;
  const back = ([low, high, start, end], place, logarithmic) => {
    const part = (place - start) / (end - start);
    return logarithmic ? low * (high / low) ** part : low + part * (high - low);
  };
  let line = 0;
  let place = 0;
  const show = (on) => {
    for (const { mark } of lines) mark.classList.remove("on");
    svg.classList.toggle("picked", on || svg.querySelector(".me") !== null);
    if (!on) return say(svg, "");
    const { mark, at } = lines[line];
    const [across, up] = at[Math.min(place, at.length - 1)];
    mark.classList.add("on");
    const when = back(x, across, log);
    say(svg, `${mark.dataset.n}: ${back(y, up).toPrecision(3)} at ${when < 100 ? Number(when.toPrecision(2)) : Math.round(when).toLocaleString("en")} ${unit}`);
  };
  const point = (event) => {
    const { x: across, y: up } = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    let best = Infinity;
    lines.forEach(({ at }, number) => {
      const near = at.reduce((kept, each, index) => (Math.abs(each[0] - across) < Math.abs(at[kept][0] - across) ? index : kept), 0);
      const distance = Math.abs(at[near][1] - up);
      if (distance < best) [best, line, place] = [distance, number, near];
    });
    show(true);
  };
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("pointerleave", () => show(false));
  svg.addEventListener("focus", () => show(true));
  svg.addEventListener("blur", () => show(false));
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    line = (line + step[0] + lines.length) % lines.length;
    place = Math.min(lines[line].at.length - 1, Math.max(0, place + step[1]));
    show(true);
  });
}

for (const select of document.querySelectorAll(".pick select")) {
  const pick = () => {
    for (const svg of document.querySelectorAll("svg.lines")) {
      const lines = [...svg.querySelectorAll("polyline[data-n]")];
      for (const line of lines) line.classList.toggle("me", line.dataset.n === select.value);
      svg.classList.toggle("picked", lines.some((line) => line.classList.contains("me")));
    }
  };
  select.addEventListener("change", pick);
  if (select.value && select.querySelectorAll("[selected]").length === 1) pick();
}

// On a telephone the menu begins at the page that is shown.
const current = document.querySelector(".top nav [aria-current]");
if (current) current.parentElement.scrollLeft = current.offsetLeft - current.parentElement.offsetLeft - 12;

// Light and dark: the system's choice until the reader makes one, then theirs on every page.
const root = document.documentElement;
try {
  const kept = localStorage.getItem("lm-validity-theme");
  if (kept) root.dataset.theme = kept;
} catch {} // a browser that keeps nothing for files
document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : window.matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("lm-validity-theme", root.dataset.theme);
  } catch {}
});

if (at) reveal();
else root.dataset.drawn = "yes";
