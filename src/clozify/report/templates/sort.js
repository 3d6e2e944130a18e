// A click on a column's header sorts the table by it, a second one in the other direction; keyboards work, too.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    const value = (row) => row.cells[column].firstChild?.textContent.trim() ?? "";
    const number = (row) => parseFloat(value(row).replace(/,/g, "")) || 0;
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const isNumeric = head.classList.contains("n");
      const compare = (a, b) => isNumeric ? number(a) - number(b) : value(a).localeCompare(value(b));
      body.append(...[...body.rows].sort((a, b) => sign * compare(a, b)));
    });
  });
}
