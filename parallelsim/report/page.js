// Sorting and filtering of the ranked plans, and copying of the script. The page says everything
// without it: what only works with it is hidden until it runs.
"use strict";
(() => {
  document.documentElement.classList.add("js");

  // What is folded cannot be opened on paper.
  addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("details")) fold.open = true;
  });

  function ranking(section) {
    const form = section.querySelector(".filters");
    const body = section.querySelector("tbody");
    const heads = [...section.querySelectorAll("thead th")];
    const rows = [...body.rows];
    const near = form.querySelector("input[type=checkbox]");
    const search = form.querySelector("input[type=search]");
    const axes = [...form.querySelectorAll("select")];

    // Numbers by size, words by the alphabet; equal ones stay in order of rank.
    function sortBy(column, sign) {
      const value = (row) => row.cells[column].dataset.v;
      const numeric = rows.every((row) => value(row) !== "" && !isNaN(value(row)));
      const compare = (a, b) =>
        numeric ? value(a) - value(b) : value(a).localeCompare(value(b), undefined, { numeric: true });
      body.append(...[...rows].sort((a, b) => sign * compare(a, b)));
      heads.forEach((head, i) => {
        const order = sign > 0 ? "ascending" : "descending";
        head.setAttribute("aria-sort", i === column ? order : "none");
      });
    }

    function filter() {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      let count = 0;
      for (const row of rows) {
        const text = [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase();
        const wanted = axes.every(
          (axis) => !axis.value || row.cells[axis.dataset.column].textContent === axis.value);
        const found = wanted && words.every((word) => text.includes(word));
        row.classList.toggle("gone", !found);
        if (found && (!near || near.checked || !row.classList.contains("near"))) count += 1;
      }
      for (const element of section.querySelectorAll(".near")) {
        element.classList.toggle("shown", near !== null && near.checked);
      }
      form.querySelector("output").value = `${count} of ${rows.length} plans`;
    }

    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        sortBy(column, head.getAttribute("aria-sort") === "ascending" ? -1 : 1);
      });
    });
    form.addEventListener("input", filter);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(filter)); // after the fields are empty
    form.hidden = false;
    filter();
  }

  // The Clipboard API may be refused to a local file: then the selection is copied.
  async function copied(element) {
    try {
      await navigator.clipboard.writeText(element.textContent);
      return true;
    } catch {
      getSelection().selectAllChildren(element);
      return document.execCommand("copy");
    }
  }

  function launch(section) {
    const line = section.querySelector(".copy");
    const script = section.querySelector("pre");
    if (!line) return;
    line.querySelector("button").addEventListener("click", async () => {
      const done = await copied(script);
      line.querySelector("output").value = done ? "Copied." : "Selected: copy it with Ctrl+C.";
    });
    line.hidden = false;
  }

  const parts = { ranking, launch };
  for (const [id, start] of Object.entries(parts)) {
    const section = document.getElementById(id);
    if (section) start(section);
  }
})();
