/* The stream: one EventSource on /v1/events, opened again for as long as the page lives.

   connecting --status--> live --nothing for a while--> silent --for long--.
                           | ^--------status---------------'               |
                           '--error--> lost <------------------------------'
                                         '--after a pause--> a new one  

   A browser reopens a broken stream on its own, but gives up permanently if the answer is an error, for example from an
   agent that is starting. So we open a new one, after a pause that grows: a page in a forgotten tab must not ask a dead
   agent many times a second. And a browser does not notice an agent that hangs, or a cable that was pulled. An agent
   sends a status every second, or every few seconds to hundreds of pages, so silence means trouble.
*/

const PAUSE_MIN_MS = 500;
const PAUSE_MAX_MS = 5000;
const SILENT_MS = 5000;
const LOST_MS = 30_000;

export class Stream {
  constructor(address, { onStatus, onConnection }) {
    this.address = address;
    this.onStatus = onStatus;
    this.onConnection = onConnection;
    this.pause = PAUSE_MIN_MS;
    this.seenAt = null;
    this.is = "connecting";
  }

  open() {
    const source = new EventSource(this.address);
    this.source = source;
    this.openedAt = performance.now();
    source.onopen = () => {
      this.pause = PAUSE_MIN_MS;
    };
    source.onerror = () => this.lost(source);
    for (const kind of ["status", "changed"]) {
      source.addEventListener(kind, (event) => {
        const status = JSON.parse(event.data);
        this.seenAt = performance.now();
        this.turn("live");
        this.onStatus(status);
      });
    }
  }

  /* Called several times a second: checks whether the stream is silent. */
  tick(now) {
    if (this.source === null) return;
    const silence = now - Math.max(this.seenAt ?? 0, this.openedAt);
    if (silence > LOST_MS) this.lost(this.source);
    else if (silence > SILENT_MS && this.is === "live") this.turn("silent");
  }

  lost(source) {
    if (source !== this.source) return; // It was given up already, and a new one is being opened.
    this.source = null;
    this.turn("lost");
    // We always close and reopen it ourselves: browsers wait for different times, up to many seconds.
    source.close();
    setTimeout(() => this.open(), this.pause);
    this.pause = Math.min(PAUSE_MAX_MS, this.pause * 2);
  }

  turn(is) {
    if (this.is !== is) {
      this.is = is;
      this.onConnection(is);
    }
  }
}
