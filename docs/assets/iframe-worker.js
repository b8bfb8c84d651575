/* Search from a folder: browsers refuse workers to pages of file://, so the script of the worker runs in a frame. */
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.ready = new Promise((resolve, reject) => {
        const attach = () => {
          document.body.appendChild(frame);
          const inside = frame.contentWindow;
          inside.postMessage = (data) => setTimeout(() => this.receive(data));
          const script = inside.document.createElement("script");
          script.onload = () => resolve(inside);
          script.onerror = reject;
          script.src = url;
          inside.document.head.appendChild(script);
        };
        document.body ? attach() : addEventListener("DOMContentLoaded", attach);
      });
    }

    receive(data) {
      this.dispatchEvent(new MessageEvent("message", { data }));
    }

    postMessage(data) {
      this.ready.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.ready.then((inside) => inside.frameElement.remove());
    }
  };
}
