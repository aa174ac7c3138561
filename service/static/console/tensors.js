// Tensors of answers: their numbers, and a table of the first ones.
import { bytes, h, number, table } from "./dom.js";

const SIZES = { float64: 8, int64: 8, uint64: 8, float32: 4, int32: 4, uint32: 4, float16: 2, bfloat16: 2, int16: 2, uint16: 2, complex64: 8, complex128: 16 };
const ROWS = 12, COLUMNS = 8;

// The elements as numbers: of `data`, or of `b64`, the form of values that JSON does not have (little endian).
export function elementsOf(tensor) {
  if (tensor.data) return tensor.data;
  const raw = Uint8Array.from(atob(tensor.b64), (each) => each.charCodeAt(0));
  const view = new DataView(raw.buffer);
  const readers = {
    float64: (i) => view.getFloat64(8 * i, true), float32: (i) => view.getFloat32(4 * i, true),
    int64: (i) => Number(view.getBigInt64(8 * i, true)), int32: (i) => view.getInt32(4 * i, true), int16: (i) => view.getInt16(2 * i, true),
    int8: (i) => view.getInt8(i), uint8: (i) => view.getUint8(i), bool: (i) => Boolean(view.getUint8(i)),
  };
  const read = readers[tensor.dtype];
  return read ? Array.from({ length: raw.length / (SIZES[tensor.dtype] || 1) }, (_, i) => read(i)) : [];
}

export function scalarOf(tensor) {
  return tensor ? elementsOf(tensor)[0] : null;
}

export function normOf(tensor) {
  return Math.sqrt(elementsOf(tensor.values || tensor).reduce((sum, x) => sum + Number(x) ** 2, 0));
}

// A table of the first rows and columns of a tensor of any rank.
export function tensorTable(name, tensor) {
  const dense = tensor.values || tensor, data = elementsOf(dense), sizes = dense.shape;
  const wide = sizes.length ? sizes[sizes.length - 1] : 1, rows = wide ? data.length / wide : 0;
  const shownRows = Math.min(rows, ROWS), shownColumns = Math.min(wide, COLUMNS);
  const count = data.length, size = count * (SIZES[dense.dtype] || 1);
  return h("div", { class: "tensor-shown" },
    h("p", {}, h("code", {}, name), " ", h("span", { class: "muted" }, `${dense.dtype}[${sizes.join(", ")}], ${bytes(size)}`,
      count > 1 ? `, norm ${number(normOf(dense))}` : "")),
    count === 1 ? h("p", { class: "scalar" }, number(data[0], 7)) :
      table([["", "number"], ...Array.from({ length: shownColumns }, (_, i) => [String(i), "number"])],
        Array.from({ length: shownRows }, (_, r) => [h("span", { class: "muted" }, tensor.rows ? elementsOf(tensor.rows)[r] : r),
          ...Array.from({ length: shownColumns }, (_, c) => number(data[r * wide + c], 5))]),
        { caption: `Values of ${name}`, empty: "It has no elements." }),
    count > 1 && (shownRows < rows || shownColumns < wide) ? h("p", { class: "muted" }, `The first ${shownRows} of ${rows} rows and ${shownColumns} of ${wide} columns.`) : null);
}
