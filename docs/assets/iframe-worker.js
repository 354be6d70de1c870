// Search from file://: a browser starts no worker from a file, so that the search's worker runs inside a hidden frame.
// Read by the theme in place of a script from the network (mkdocs.yml, extra.polyfills).
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.frame = frame
      this.waiting = []
      const inside = frame.contentWindow
      // What the worker says arrives here as a message event.
      inside.postMessage = data => this.deliver(this, data)
      const script = inside.document.createElement("script")
      script.src = new URL(url, location.href).href
      script.onload = () => {
        for (const data of this.waiting.splice(0)) this.deliver(inside, data)
        this.waiting = null
      }
      script.onerror = () => this.dispatchEvent(new ErrorEvent("error", { message: `cannot load ${script.src}` }))
      inside.document.body.append(script)
    }
    deliver(target, data) {
      const event = new MessageEvent("message", { data })
      setTimeout(() => {
        target.dispatchEvent(event)
        if (typeof target.onmessage === "function" && target === this) target.onmessage(event)
      })
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.deliver(this.frame.contentWindow, data)
    }
    terminate() {
      this.frame.remove()
    }
  }
  window.Worker = window.IFrameWorker
}
