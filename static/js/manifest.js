// The manifest of a dataset version, as defined by datasets/manifests.py: columns of paths, kinds, sizes and digests.
// Paths are strings with one character for each byte, so that their order is that of the bytes.

const MAGIC = "trainyard-manifest-1\n";
const HEAD_BYTES = 24, DIGEST_BYTES = 32;

/** A path as a string of bytes. Throws URIError for half a surrogate pair, which no file name on a server can have. */
export function bytePath(path) {
  encodeURIComponent(path);
  return bytesToText(new TextEncoder().encode(path));
}

/** The stored form of entries [{path, kind, size, digest}], in any order. */
export async function encode(entries) {
  const sorted = [...entries].sort((one, two) => (one.path < two.path ? -1 : 1));
  const joined = sorted.map((entry) => entry.path).join("\0");
  const columns = new Uint8Array(joined.length + 9 * sorted.length);
  textToBytes(joined, columns);
  columns.set(sorted.map((entry) => entry.kind), joined.length);
  const sizes = new DataView(columns.buffer, joined.length + sorted.length);
  sorted.forEach((entry, place) => sizes.setBigUint64(8 * place, BigInt(entry.size), true));
  const packed = await through(columns, new CompressionStream("deflate"));
  const head = new DataView(new ArrayBuffer(HEAD_BYTES));
  [sorted.length, joined.length, packed.length].forEach((count, place) => head.setBigUint64(8 * place, BigInt(count), true));
  return new Blob([MAGIC, head.buffer, packed, ...sorted.map((entry) => entry.digest)]);
}

/** The entries of a stored form. */
export async function decode(stored) {
  const head = new DataView(stored, MAGIC.length, HEAD_BYTES);
  const [count, pathBytes, packedBytes] = [0, 8, 16].map((at) => Number(head.getBigUint64(at, true)));
  if (!count) return [];
  const start = MAGIC.length + HEAD_BYTES;
  const columns = await through(new Uint8Array(stored, start, packedBytes), new DecompressionStream("deflate"));
  const paths = bytesToText(columns.subarray(0, pathBytes)).split("\0");
  const sizes = new DataView(columns.buffer, columns.byteOffset + pathBytes + count);
  return paths.map((path, place) => ({
    path,
    kind: columns[pathBytes + place],
    size: Number(sizes.getBigUint64(8 * place, true)),
    digest: new Uint8Array(stored, start + packedBytes + DIGEST_BYTES * place, DIGEST_BYTES),
  }));
}

/** The end of a pack (datasets/ingest/packs.py) of contents [{digest, size}] in this order. */
export function packIndex(contents) {
  const index = new DataView(new ArrayBuffer(48 * contents.length + 24));
  let offset = 0;
  contents.forEach(({ digest, size }, place) => {
    new Uint8Array(index.buffer).set(digest, 48 * place);
    index.setBigUint64(48 * place + 32, BigInt(offset), true);
    index.setBigUint64(48 * place + 40, BigInt(size), true);
    offset += size;
  });
  index.setBigUint64(48 * contents.length, BigInt(contents.length), true);
  textToBytes("trainyard-pack-1", new Uint8Array(index.buffer, 48 * contents.length + 8));
  return index.buffer;
}

async function through(bytes, stream) {
  return new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());
}

function bytesToText(bytes) {
  const parts = [];
  for (let at = 0; at < bytes.length; at += 8192) parts.push(String.fromCharCode(...bytes.subarray(at, at + 8192)));
  return parts.join("");
}

function textToBytes(text, target) {
  for (let place = 0; place < text.length; place++) target[place] = text.charCodeAt(place);
}
