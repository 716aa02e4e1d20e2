/* Search runs in a worker, which browsers refuse to pages opened from a folder: there, it runs in a
   hidden frame, with messages copied as between workers. The name keeps Zensical from loading such a
   script from elsewhere. */
if (location.protocol === "file:")
  window.Worker = class {
    constructor(address) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.documentElement.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.document.write(`<script src="${address}"></script>`);
      inside.document.close();
      inside.postMessage = (data) => this.onmessage?.({ data: structuredClone(data) });
      this.loaded = new Promise((done) => inside.addEventListener("load", done));
    }
    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.onmessage({ data: structuredClone(data) }));
    }
    terminate() {
      this.frame.remove();
    }
  };
