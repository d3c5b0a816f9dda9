// SHA-256 of files of any size: by Web Crypto in secure contexts, else by the code below, which
// also hashes in pieces what is too large for memory.

const SLICE_BYTES = 4 << 20;
const AT_ONCE_BYTES = 32 << 20;

/** The digest of a file or blob as 32 bytes. `read` is called with the bytes of each piece that was read. */
export async function sha256(blob, signal, read = () => {}) {
  if (globalThis.crypto?.subtle && blob.size <= AT_ONCE_BYTES) {
    const digest = await crypto.subtle.digest("SHA-256", await blob.arrayBuffer());
    read(blob.size);
    return new Uint8Array(digest);
  }
  const hash = new Sha256();
  for (let at = 0; at < blob.size; at += SLICE_BYTES) {
    signal?.throwIfAborted();
    const piece = new Uint8Array(await blob.slice(at, at + SLICE_BYTES).arrayBuffer());
    hash.update(piece);
    read(piece.length);
  }
  return hash.digest();
}

/** Lower-case hexadecimal digits of bytes. */
export const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

const K = fractions(64, (prime) => Math.cbrt(prime));
const START = fractions(8, (prime) => Math.sqrt(prime));

/** The first 32 bits of the fractions of roots of the first primes, as the standard defines its constants. */
function fractions(count, root) {
  const found = [];
  for (let number = 2; found.length < count; number++) {
    let isPrime = true;
    for (let factor = 2; factor * factor <= number; factor++) if (number % factor === 0) isPrime = false;
    if (isPrime) found.push(((root(number) % 1) * 2 ** 32) >>> 0);
  }
  return Uint32Array.from(found);
}

/** SHA-256 (FIPS 180-4) of bytes that come in pieces. */
export class Sha256 {
  #state = Uint32Array.from(START);
  #words = new Uint32Array(64);
  #rest = new Uint8Array(64);
  #restBytes = 0;
  #bytes = 0;

  update(data) {
    this.#bytes += data.length;
    let at = 0;
    if (this.#restBytes) {
      at = Math.min(64 - this.#restBytes, data.length);
      this.#rest.set(data.subarray(0, at), this.#restBytes);
      this.#restBytes += at;
      if (this.#restBytes < 64) return;
      this.#block(this.#rest, 0);
      this.#restBytes = 0;
    }
    for (; at + 64 <= data.length; at += 64) this.#block(data, at);
    this.#rest.set(data.subarray(at));
    this.#restBytes = data.length - at;
  }

  digest() {
    const end = new Uint8Array(this.#restBytes < 56 ? 64 : 128);
    end.set(this.#rest.subarray(0, this.#restBytes));
    end[this.#restBytes] = 0x80;
    const view = new DataView(end.buffer);
    view.setUint32(end.length - 8, Math.floor(this.#bytes / 0x20000000));
    view.setUint32(end.length - 4, (this.#bytes << 3) >>> 0);
    for (let at = 0; at < end.length; at += 64) this.#block(end, at);
    const found = new DataView(new ArrayBuffer(32));
    this.#state.forEach((word, place) => found.setUint32(4 * place, word));
    return new Uint8Array(found.buffer);
  }

  #block(data, at) {
    const w = this.#words, s = this.#state;
    for (let i = 0; i < 16; i++, at += 4) w[i] = (data[at] << 24) | (data[at + 1] << 16) | (data[at + 2] << 8) | data[at + 3];
    for (let i = 16; i < 64; i++) {
      const x = w[i - 15], y = w[i - 2];
      const low = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
      const high = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
      w[i] = w[i - 16] + low + w[i - 7] + high;
    }
    let [a, b, c, d, e, f, g, h] = s;
    for (let i = 0; i < 64; i++) {
      const sum1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
      const one = (h + sum1 + ((e & f) ^ (~e & g)) + K[i] + w[i]) | 0;
      const sum0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
      const two = (sum0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g; g = f; f = e; e = (d + one) | 0; d = c; c = b; b = a; a = (one + two) | 0;
    }
    s[0] += a; s[1] += b; s[2] += c; s[3] += d; s[4] += e; s[5] += f; s[6] += g; s[7] += h;
  }
}
