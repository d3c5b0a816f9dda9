// A scroll position in content that is taller than browsers support. Chromium rounds positions far down an
// element and is limited to 33 million pixels, so the element stays short: near both ends one of its pixels is one of the log;
// between them the scrollbar position is proportional. Wheel, keys and touch always move by real pixels.

const HIGHEST = 4_000_000; // below 2 ** 22 the float32 in which Chromium paints still has quarters of a pixel
const ENDS = 100_000; // pixels at either end that are the same in both, so that slow movements get to the very end
const REST = 150; // milliseconds without a movement: the hand is off

export class LogScroll {
  /** `view` scrolls over `space`; `rested()` is called after a movement, `top` is what is seen first, in pixels. */
  constructor(view, space, rested) {
    Object.assign(this, { view, space, rested, top: 0, length: 0, height: 0, seen: 0, isJump: false, timer: null });
  }

  get #last() { return Math.max(0, this.length - this.view.clientHeight); }
  get #lastShown() { return Math.max(0, this.height - this.view.clientHeight); }

  /** Set the total height in pixels. */
  resize(length) {
    this.length = length;
    const height = Math.min(length, HIGHEST);
    if (height === this.height) return;
    this.height = height;
    this.space.style.blockSize = `${height}px`;
    this.seen = this.view.scrollTop; // the browser clamps it, which is not a user's movement
  }

  /** Scroll to `top` at the next settle(). */
  go(top) {
    this.top = top;
    this.#rest();
  }

  isNearEnd(pixels) { return this.#last - this.top < pixels; }

  /** Handle a scroll event; returns the user's movement in pixels. */
  moved() {
    const by = this.view.scrollTop - this.seen;
    if (!by) return 0; // sideways, or our own doing
    this.seen += by;
    this.isJump ||= Math.abs(by) > this.#leap();
    this.top = this.#inside(this.isJump ? this.#meant(this.seen) : this.top + by);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => { this.#rest(); this.rested(); }, REST);
    return by;
  }

  /** Move the scrollbar to `top`, but during a user's movement only at either end. */
  settle() {
    this.top = this.#inside(this.top);
    if (this.timer && !this.#isAtEdge()) return;
    const shown = this.#shown(this.top);
    if (Math.abs(this.view.scrollTop - shown) >= 1) this.view.scrollTop = shown;
    this.seen = this.view.scrollTop;
  }

  /** The position in `space` of a log offset in pixels. */
  place(offset) { return this.seen + offset - this.top; }

  #rest() {
    clearTimeout(this.timer);
    this.timer = null;
    this.isJump = false;
  }

  #inside(top) { return Math.min(Math.max(0, top), this.#last); }

  // One pixel of the scrollbar's track is more than this; a wheel notch or a page is less.
  #leap() { return Math.max(this.view.clientHeight, this.height / (4 * Math.max(1, this.view.clientHeight))); }

  #isAtEdge() {
    return this.top <= 0 || this.top >= this.#last || this.seen <= 0 || this.seen >= this.#lastShown - 1;
  }

  // log -> element
  #shown(top) {
    if (this.length <= HIGHEST || top <= ENDS) return top;
    if (top >= this.#last - ENDS) return this.#lastShown - (this.#last - top);
    return ENDS + (top - ENDS) / this.#scale();
  }

  // element -> log
  #meant(shown) {
    if (this.length <= HIGHEST || shown <= ENDS) return shown;
    if (shown >= this.#lastShown - ENDS) return this.#last - (this.#lastShown - shown);
    return ENDS + (shown - ENDS) * this.#scale();
  }

  #scale() { return (this.#last - 2 * ENDS) / (this.#lastShown - 2 * ENDS); }
}
