// A survey's section: the map of heads by any measure.

// From this shade on, numbers are written in the colour of the page's background.
const STRONG = 0.66;

class HeadsView {
  constructor(section) {
    this.section = section;
    this.data = JSON.parse(section.querySelector("script").textContent);
    this.cells = [...section.querySelectorAll(".heads-map td > *")];
    this.readout = section.querySelector(".readout");
    this.readout.hidden = false;
    this.readout.setAttribute("role", "status");
    this.readout.textContent = "Point at a head, or move to the map with the Tab key and use the arrow keys.";
    this.choice = section.querySelector(".by-measure");
    this.choice.closest(".filters").hidden = false;
    this.choice.addEventListener("change", () => this.show(Number(this.choice.value)));
    this.cells.forEach((cell, i) => {
      cell.tabIndex = i ? -1 : 0; // the map is one stop of the Tab key
      cell.addEventListener("pointerenter", () => this.tell(i));
      cell.addEventListener("pointerleave", hideTip);
      cell.addEventListener("focus", () => this.tell(i));
      cell.addEventListener("blur", hideTip);
      cell.addEventListener("keydown", (event) => this.press(event, i));
    });
    window.addEventListener("hashchange", () => this.mark());
    this.show(Number(this.choice.value));
    this.mark();
  }

  show(index) {
    const measure = this.data.measures[index];
    this.section.querySelector(".measure-help").textContent = measure.help;
    this.cells.forEach((cell, i) => {
      cell.textContent = measure.texts[i];
      cell.parentElement.style.setProperty("--shade", measure.shades[i]);
      cell.parentElement.classList.toggle("on-strong", measure.shades[i] > STRONG);
    });
  }

  tell(i) {
    const box = this.cells[i].getBoundingClientRect();
    this.readout.textContent = this.data.told[i].replaceAll("\n", "; ");
    showTip(this.data.told[i], box.left + box.width / 2, box.top);
  }

  press(event, i) {
    const across = this.data.columns, column = i % across;
    const to = {
      ArrowLeft: column ? i - 1 : i, ArrowRight: column < across - 1 ? i + 1 : i, ArrowUp: i - across, ArrowDown: i + across,
      Home: i - column, End: i - column + across - 1,
    }[event.key];
    if (event.key === "Escape") hideTip();
    if (to === undefined) return;
    event.preventDefault();
    if (!this.cells[to]) return;
    this.cells[i].tabIndex = -1;
    this.cells[to].tabIndex = 0;
    this.cells[to].focus();
  }

  mark() {
    for (const cell of this.cells) {
      if (cell.hash && cell.hash === location.hash) cell.setAttribute("aria-current", "true");
      else cell.removeAttribute("aria-current");
    }
  }
}
