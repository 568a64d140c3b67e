// The neurons of a run, column by column: rows that match a filter, sorted, and the text of each cell.

// Columns of ablation effects, of classes and of numbers.
const LOSSES = ["cross_entropy_without", "r2_without"];

class Table {
  // All rows of a run, column by column; a row is identified by its index.
  constructor(data) {
    this.columns = data.columns;
    this.width = data.width;
    this.far = data.far;
    this.unresolved = data.unresolved;
    this.negligible = data.negligible;
    this.layers = data.layers;
    this.layerNames = data.layerNames;
    this.values = {};
    for (const [key, packed] of Object.entries(data.rows)) this.values[key] = packed.names ? texts(packed) : numbers(packed);
    this.length = this.layers.length * this.width;
    const rows = Array.from({ length: this.length }, (_, row) => row);
    this.values.layer = rows.map((row) => this.layers[Math.floor(row / this.width)]);
    this.at = new Map(rows.map((row) => [this.values.layer[row] + "," + this.values.neuron[row], row]));
  }

  get(row, key) {
    return this.values[key] ? this.values[key][row] : NaN;
  }

  layerName(row) {
    return this.layerNames[this.layers.indexOf(this.get(row, "layer"))];
  }

  // The index of a neuron; of pairs of spans, its index in the layer and its span.
  neuronName(row) {
    return this.values.span ? `${this.get(row, "span_neuron")} of span ${this.get(row, "span")}` : String(this.get(row, "neuron"));
  }

  find(layer, neuron) {
    return this.at.get(layer + "," + neuron);
  }

  text(row, column) {
    if (column.key === "layer") return this.layerName(row);
    if (column.key === "neuron") return this.neuronName(row);
    if (column.key === "rank_low") return `${this.get(row, "rank_low")}–${this.get(row, "rank_high")}`;
    if (LOSSES.includes(column.key) && this.get(row, "removed").includes(this.unresolved)) return this.unresolved;
    if (LOSSES.includes(column.key) && this.get(row, "removed").includes(this.negligible)) return this.negligible;
    const text = shown(this.get(row, column.key), column);
    return column.key === "contribution_centred" && this.isFar(row) ? "*" + text : text;
  }

  isFar(row) {
    return this.get(row, "flag") !== "dead" && Math.abs(this.get(row, "mean")) > this.far * this.get(row, "sd");
  }

  matching(layer, flag, neuron) {
    const rows = [], neurons = this.values.span_neuron || this.values.neuron;
    for (let row = 0; row < this.length; row++) {
      const own = this.values.flag[row];
      if (layer !== "" && this.values.layer[row] !== Number(layer)) continue;
      if (flag !== "" && own !== (flag === "none" ? "" : flag)) continue;
      if (neuron !== "" && neurons[row] !== Number(neuron)) continue;
      rows.push(row);
    }
    return rows;
  }

  sorted(rows, key, direction) {
    const values = this.values[key], sign = direction === "ascending" ? 1 : -1;
    return rows.sort((a, b) => {
      const x = values[a], y = values[b];
      if (typeof x === "string") return sign * (x < y ? -1 : x > y ? 1 : 0) || a - b;
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y) || a - b; // missing values are last
      return sign * (x - y) || a - b;
    });
  }
}
