// A run's section: the table that sorts and filters, the map with its readout, and the details of one picked neuron.

// Number of rows of the table before the user asks for more.
const FIRST = 10;

class RunView {
  constructor(section) {
    this.section = section;
    this.data = JSON.parse(section.querySelector("script").textContent);
    this.table = new Table(this.data);
    this.byClass = { ...this.data.byClass, words: words(this.data.byClass.values), mean: numbers(this.data.byClass.typical) };
    this.sort = { key: "rank", direction: "ascending" };
    this.limit = FIRST;
    this.list = section.querySelector("table.neurons");
    this.setUpTable();
    this.setUpMap();
    this.setUpClasses();
    const { layers, leading, width } = this.data;
    this.picked = this.table.find(leading, this.table.values.neuron[layers.indexOf(leading) * width]);
    this.pick(this.picked);
    this.showRows();
  }

  // The table.

  setUpTable() {
    for (const head of this.list.tHead.rows[0].cells) {
      const button = make("button", { type: "button", title: head.title }, head.textContent);
      button.addEventListener("click", () => this.sortBy(head.dataset.key));
      head.replaceChildren(button);
      head.removeAttribute("title");
    }
    this.filters = this.section.querySelector(".filters");
    this.filters.hidden = false;
    this.filters.addEventListener("submit", (event) => event.preventDefault());
    for (const kind of ["input", "change"]) { // a menu may send only the second, when it is operated by a program
      this.filters.addEventListener(kind, () => {
        const wanted = this.wanted().join();
        if (wanted === this.filtered) return; // a click on a row leaves the field, and must find the row still there
        this.filtered = wanted;
        this.limit = FIRST;
        this.showRows();
      });
    }
    this.more = this.section.querySelector(".more");
    this.more.addEventListener("click", () => {
      this.limit += 50;
      this.showRows();
    });
  }

  sortBy(key) {
    const fewestFirst = ["rank", "layer", "neuron", "rank_low", "flag"].includes(key);
    const usual = fewestFirst ? "ascending" : "descending", other = fewestFirst ? "descending" : "ascending";
    this.sort = { key, direction: this.sort.key === key && this.sort.direction === usual ? other : usual };
    this.limit = FIRST;
    this.showRows();
  }

  wanted() {
    return [".by-layer", ".by-flag", ".by-neuron"].map((name) => this.filters.querySelector(name).value.trim());
  }

  showRows() {
    const rows = this.table.sorted(this.table.matching(...this.wanted()), this.sort.key, this.sort.direction);
    for (const head of this.list.tHead.rows[0].cells) {
      if (head.dataset.key === this.sort.key) head.setAttribute("aria-sort", this.sort.direction);
      else head.removeAttribute("aria-sort");
    }
    this.list.tBodies[0].replaceChildren(...rows.slice(0, this.limit).map((row) => this.rowElement(row)));
    const name = [...this.list.tHead.rows[0].cells].find((head) => head.hasAttribute("aria-sort")).textContent;
    const n = Math.min(this.limit, rows.length);
    this.list.caption.textContent = `Neurons by ${name}, ${this.sort.direction}`;
    this.filters.querySelector("[role=status]").textContent = `${n} of ${rows.length} neurons shown`;
    this.more.parentElement.hidden = n === rows.length;
  }

  rowElement(row) {
    const cells = this.table.columns.map((column) => {
      const text = this.table.text(row, column);
      if (column.key !== "neuron") return make("td", {}, text);
      const button = make("button", { type: "button" }, text);
      button.setAttribute("aria-label", `neuron ${text} of layer ${this.table.layerName(row)}`);
      button.addEventListener("click", () => this.pick(row, true));
      return make("td", {}, button);
    });
    const element = make("tr", {}, ...cells, make("td", { className: "words" }, this.table.get(row, "flag")));
    element.dataset.row = row;
    element.classList.toggle("is-picked", row === this.picked);
    return element;
  }

  // The map.

  setUpMap() {
    this.field = this.section.querySelector(".field");
    this.readout = this.section.querySelector(".readout");
    this.readout.hidden = false;
    this.readout.setAttribute("role", "status");
    this.readout.textContent = "Point at a neuron, or move to the map with the Tab key and use the arrow keys; Enter picks a neuron.";
    this.cursor = make("div", { className: "cursor", hidden: true });
    this.ring = make("div", { className: "pick" });
    this.field.append(this.cursor, this.ring);
    this.field.tabIndex = 0;
    this.field.setAttribute("role", "application");
    this.field.setAttribute("aria-roledescription", "map of neurons");
    this.field.addEventListener("pointermove", (event) => this.point(event));
    this.field.addEventListener("pointerleave", () => this.leave());
    this.field.addEventListener("focus", () => this.moveTo(this.cell));
    this.field.addEventListener("blur", () => this.leave());
    this.field.addEventListener("click", (event) => {
      this.point(event);
      this.pick(this.rowAt(this.cell));
    });
    this.field.addEventListener("keydown", (event) => this.press(event));
  }

  rowAt(cell) {
    return this.table.find(this.data.layers[cell.i], cell.neuron);
  }

  point(event) {
    const box = this.field.getBoundingClientRect();
    const within = (share, n) => Math.max(0, Math.min(n - 1, Math.floor(share * n)));
    this.moveTo({
      i: within((event.clientY - box.top) / box.height, this.data.layers.length),
      neuron: within((event.clientX - box.left) / box.width, this.data.width),
    });
  }

  moveTo(cell) {
    this.cell = cell;
    const spot = this.spot(cell), box = this.field.getBoundingClientRect();
    Object.assign(this.cursor.style, { left: spot.x + "px", top: spot.y + "px", width: spot.width + "px", height: spot.height + "px" });
    this.cursor.hidden = false;
    const text = this.told(this.rowAt(cell));
    this.readout.textContent = text.replaceAll("\n", "; ");
    showTip(text, box.left + spot.x, box.top + spot.y);
  }

  spot(cell) {
    const width = this.field.offsetWidth / this.data.width, height = this.field.offsetHeight / this.data.layers.length;
    return { x: cell.neuron * width, y: cell.i * height, width, height };
  }

  leave() {
    this.cursor.hidden = true;
    hideTip();
  }

  press(event) {
    const { i, neuron } = this.cell, lastLayer = this.data.layers.length - 1, lastNeuron = this.data.width - 1;
    const moves = {
      ArrowLeft: [i, neuron - 1], ArrowRight: [i, neuron + 1], ArrowUp: [i - 1, neuron], ArrowDown: [i + 1, neuron],
      PageUp: [i, neuron - 50], PageDown: [i, neuron + 50], Home: [i, 0], End: [i, lastNeuron],
    };
    if (event.key === "Enter" || event.key === " ") this.pick(this.rowAt(this.cell));
    else if (event.key === "Escape") this.leave();
    else if (moves[event.key]) {
      const [to, of] = moves[event.key];
      this.moveTo({ i: Math.max(0, Math.min(lastLayer, to)), neuron: Math.max(0, Math.min(lastNeuron, of)) });
      const spot = this.spot(this.cell), scroller = this.field.closest(".scroll");
      if (spot.x < scroller.scrollLeft || spot.x > scroller.scrollLeft + scroller.clientWidth - 60) scroller.scrollLeft = spot.x - 60;
    } else return;
    event.preventDefault();
  }

  told(row) {
    const wanted = ["contribution", "ratio", "contribution_centred", "eta_squared", "eta_squared_z"];
    const columns = this.table.columns.filter((column) => wanted.includes(column.key));
    const parts = columns.map((column) => `${column.label} ${this.table.text(row, column)}`);
    const flag = this.table.get(row, "flag");
    const head = `layer ${this.table.layerName(row)}, neuron ${this.table.neuronName(row)}, rank ${this.table.get(row, "rank")}`;
    return `${head}${flag ? ", " + flag : ""}\n${parts.join(", ")}`;
  }

  // The neuron that was picked.

  setUpClasses() {
    this.detail = this.section.querySelector(".detail");
    this.chart = this.detail.querySelector(".by-class");
    this.chart.addEventListener("pointermove", (event) => this.pointAtClass(event));
    this.chart.addEventListener("pointerleave", hideTip);
    this.chart.setAttribute("tabindex", "0");
    this.classReadout = this.detail.querySelector(".readout");
    this.classReadout.hidden = false;
    this.classReadout.setAttribute("role", "status");
    this.chart.addEventListener("keydown", (event) => this.pressAtClass(event));
    this.chart.addEventListener("focus", () => this.tellClass(this.classIndex || 0));
    this.chart.addEventListener("blur", hideTip);
  }

  pick(row, byButton = false) {
    this.picked = row;
    this.cell = { i: Math.floor(row / this.data.width), neuron: this.table.get(row, "neuron") };
    const get = (key) => this.table.get(row, key), neuron = get("neuron"), flag = get("flag");
    this.detail.querySelector(".picked").textContent = `Layer ${this.table.layerName(row)}, neuron ${this.table.neuronName(row)}`;
    const note = this.detail.querySelector(".flagged");
    note.hidden = !flag;
    note.textContent = flag ? `${flag}: ${this.data.flags[flag] || ""}` : "";
    const facts = this.table.columns.filter((column) => !["layer", "neuron"].includes(column.key));
    const entries = facts.map((column) => [column.label, this.table.text(row, column), column.help]);
    for (const loss of LOSSES.filter((name) => this.table.values[name + "_low"] && !Number.isNaN(get(name + "_low")))) {
      entries.push(["95% range of that", `${get(loss + "_low").toFixed(4)} to ${get(loss + "_high").toFixed(4)}`, "interval over test sentences"]);
    }
    for (const [key, help] of [["mean", "of its activations over training tokens"], ["sd", "standard deviation of its activations over training tokens"]]) {
      if (this.table.values[key]) entries.push([`activation ${key}`, get(key).toPrecision(3), help]);
    }
    const list = this.detail.querySelector(".facts");
    list.hidden = false;
    list.replaceChildren(...entries.filter(([, text]) => text !== "").map(([name, text, help]) =>
      make("div", { title: help }, make("dt", {}, name), make("dd", {}, text))));
    this.linkPage(`${this.section.id}-${get("layer")}-${neuron}`);
    const across = (neuron + 0.5) / this.data.width, down = (this.cell.i + 0.5) / this.data.layers.length;
    Object.assign(this.ring.style, { left: `calc(${100 * across}% - 8px)`, top: `calc(${100 * down}% - 8px)` }); // on paper, too
    for (const element of this.list.tBodies[0].rows) element.classList.toggle("is-picked", Number(element.dataset.row) === row);
    this.drawClasses(row);
    if (byButton) this.detail.querySelector(".picked").focus();
  }

  // The picked neuron's block further down, if it has one; following the link opens what it stands in.
  linkPage(id) {
    const page = document.getElementById(id), link = this.detail.querySelector(".to-page");
    link.hidden = !page;
    if (!page) return;
    link.firstElementChild.href = "#" + id;
    link.firstElementChild.onclick = () => {
      for (let within = page; within; within = within.parentElement.closest("details")) within.open = true;
    };
  }

  drawClasses(row) {
    const n = this.data.classes.length, { per_layer: perLayer, mean, values } = this.byClass;
    const i = this.data.layers.indexOf(this.table.get(row, "layer")), index = row % this.table.width;
    const start = (i * perLayer + index) * n;
    this.bars = index < perLayer ? this.byClass.words.slice(start, start + n).map((word) => half(word) * values.scale) : [];
    this.typical = mean.slice(i * n, (i + 1) * n);
    const { left, width, top, height } = this.frame(), highest = Math.max(...this.bars, ...this.typical) || 1, step = width / n;
    const bottom = top + height, tall = (value) => (Math.max(value, 0) / highest) * height;
    const bar = (value, j) => `M${left + (j + 0.1) * step} ${bottom}v${-tall(value)}h${0.8 * step}V${bottom}z`;
    const line = (value, j) => `M${left + j * step} ${bottom - tall(value)}h${step}`;
    this.chart.querySelector(".bars").setAttribute("d", this.bars.map(bar).join(""));
    this.chart.querySelector(".typical").setAttribute("d", this.typical.map(line).join(""));
    for (const level of this.chart.querySelectorAll(".level")) level.textContent = String(Number((highest * level.dataset.share).toPrecision(2)));
    this.classReadout.textContent = "Point at a bar, or move to the chart with the Tab key and use the arrow keys.";
    const peak = this.bars.indexOf(Math.max(...this.bars));
    const name = `contribution of layer ${this.table.layerName(row)}, neuron ${this.table.neuronName(row)}, by ${this.data.task}`;
    this.chart.setAttribute("aria-label", this.bars.length
      ? `${name}: largest at ${this.data.classes[peak]}, ${this.bars[peak].toPrecision(3)}`
      : `${name}: this page has only the layer's mean`);
  }

  frame() {
    return Object.fromEntries(Object.entries(this.chart.dataset).map(([key, value]) => [key, Number(value)]));
  }

  pointAtClass(event) {
    const box = this.chart.getBoundingClientRect(), { left, width } = this.frame();
    const share = ((event.clientX - box.left) / box.width * this.chart.viewBox.baseVal.width - left) / width;
    const j = Math.floor(share * this.data.classes.length);
    if (j < 0 || j >= this.data.classes.length) return hideTip();
    this.tellClass(j, event.clientX, event.clientY);
  }

  pressAtClass(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    this.tellClass(Math.max(0, Math.min(this.data.classes.length - 1, (this.classIndex || 0) + step)));
  }

  tellClass(j, x, y) {
    this.classIndex = j;
    const own = this.bars.length ? `${this.bars[j].toPrecision(3)}, ` : "";
    const box = this.chart.getBoundingClientRect(), { left, width } = this.frame();
    const across = (left + (j + 0.5) * width / this.data.classes.length) / this.chart.viewBox.baseVal.width;
    const text = `${this.data.task} ${this.data.classes[j]}: ${own}layer's mean ${this.typical[j].toPrecision(3)}`;
    this.classReadout.textContent = text;
    showTip(text, x ?? box.left + across * box.width, y ?? box.top + box.height / 2);
  }
}
