// Selects above the table of scores, which hide the rows of other algorithms and environments.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("table")) {
    const titles = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
    const columns = ["algorithm", "environment", "passed"].filter((title) => titles.includes(title));
    if (columns.length < 3) continue;
    const rows = [...table.querySelectorAll("tbody tr")];
    const text = (row, title) => row.cells[titles.indexOf(title)].textContent.trim();
    const bar = document.createElement("p");
    const count = document.createElement("span");
    const show = () => {
      const asked = [...bar.querySelectorAll("select")].filter((select) => select.value);
      for (const row of rows) row.hidden = asked.some((select) => text(row, select.name) !== select.value);
      count.textContent = ` ${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
    };
    for (const title of columns) {
      const select = document.createElement("select");
      select.name = title;
      select.setAttribute("aria-label", title);
      select.add(new Option(`${title}: all`, ""));
      for (const value of new Set(rows.map((row) => text(row, title)).sort())) select.add(new Option(value, value));
      select.addEventListener("change", show);
      bar.append(select, " ");
    }
    bar.className = "filter";
    bar.append(count);
    (table.closest(".scroll") ?? table).before(bar);
    show();
  }
});
