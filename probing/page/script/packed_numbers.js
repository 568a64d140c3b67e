// Numbers and texts as Python packed them; see probing/page/packing.py.

function bytes(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

function read(packed, size, at) {
  const view = new DataView(bytes(packed.data).buffer);
  return Array.from({ length: view.byteLength / size }, (_, i) => at(view, size * i));
}

function words(packed) {
  return read(packed, 2, (view, offset) => view.getUint16(offset, true));
}

function half(word) {
  const sign = word & 0x8000 ? -1 : 1, exponent = (word >> 10) & 31, fraction = word & 1023;
  if (exponent === 31) return NaN;
  return sign * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
}

function numbers(packed) {
  if (packed.kind === "integer") return words(packed);
  if (packed.kind === "single") return read(packed, 4, (view, offset) => view.getFloat32(offset, true));
  return words(packed).map((word) => half(word) * packed.scale);
}

function texts(packed) {
  return words(packed.codes).map((code) => packed.names[code]);
}
