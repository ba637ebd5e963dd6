"use strict";
const table = document.getElementById("table");
const body = table.tBodies[0];

function value(row, column) {
  const text = row.cells[column].dataset.order;
  return text === "" ? null : Number.isNaN(Number(text)) ? text : Number(text);
}

function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
}

function sort(header) {
  const column = header.cellIndex;
  const down = header.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = [...body.rows].sort((one, two) => {
    const a = value(one, column), b = value(two, column);
    return a === null || b === null ? compare(a, b) : (down ? -1 : 1) * compare(a, b);
  });
  body.append(...rows);
}

function filter() {
  const words = document.getElementById("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of body.rows) {
    const text = row.textContent.toLowerCase();
    const fits = words.every((word) => word.startsWith("-") && word.length > 1 ? !text.includes(word.slice(1)) : text.includes(word));
    row.hidden = !fits;
    shown += fits;
  }
  document.getElementById("count").textContent = `${shown} of ${body.rows.length} jobs`;
}

function see(job) {
  const seen = document.getElementById("seen");
  seen.replaceChildren();
  for (const row of body.rows) {
    const lit = row.cells[0].textContent === job;
    row.classList.toggle("lit", lit);
    if (lit) seen.append(row.cells[2].textContent);
  }
  for (const figure of document.querySelectorAll("figure")) {
    if (figure.dataset.job !== job) continue;
    const line = document.createElement("div");
    line.append(...[...figure.querySelectorAll("img")].map((image) => image.cloneNode()));
    seen.append(line);
  }
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--ink").trim(), line = style.getPropertyValue("--line").trim();
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line };
  return { font: { color: ink }, xaxis: axis, yaxis: axis };
}

function draw() {
  const own = colours();
  for (const [id, chart] of Object.entries(charts)) {
    const layout = { ...chart.layout, font: own.font };
    for (const axis of ["xaxis", "yaxis"]) layout[axis] = { ...layout[axis], ...own[axis] };
    if (innerWidth < 720 && chart.data[0].orientation === "h") {  // the job's name alone
      const names = chart.data[0].y;
      layout.yaxis = { ...layout.yaxis, tickvals: names, ticktext: names.map((name) => name.split(":")[0]) };
    }
    Plotly.react(id, chart.data, layout, { responsive: true, displaylogo: false });
  }
}

for (const header of table.tHead.rows[0].cells) header.firstElementChild.addEventListener("click", () => sort(header));
document.getElementById("filter").addEventListener("input", filter);
document.querySelector(".filters").addEventListener("submit", (event) => event.preventDefault());
filter();
draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
if (charts.pareto) {
  document.getElementById("pareto").on("plotly_hover", (event) => see(event.points[0].customdata));
  see(charts.pareto.data[1].customdata[0]);  // the fastest job
}
