"use strict";
// Follows the server of `paceline ui`. The token comes in the address behind "#", which no browser
// sends; it goes into a header, so that no other page can use it.

const token = location.hash.slice(1) || sessionStorage.getItem("token") || "";
if (location.hash) sessionStorage.setItem("token", token);
history.replaceState(null, "", location.pathname + location.search);
const headers = { Authorization: `Bearer ${token}` };
const link = (text) => { query("#link").textContent = text; };

async function* messages(path) {
  const reply = await fetch(path, { headers });
  if (!reply.ok) throw Object.assign(new Error(await reply.text()), { status: reply.status });
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (text + value.replaceAll("\r", "")).split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data:"));
      if (data.length) yield JSON.parse(data.map((line) => line.slice(5)).join("\n"));
    }
  }
}

async function follow(path) {
  for (let wait = 1; ; wait = Math.min(2 * wait, 15)) {
    try {
      for await (const message of messages(path)) {
        wait = 0.5;
        if (message.over) {
          for (const order of ["#stop", "#scale", "#kill"]) query(order).hidden = true;
          return link(message.over);
        }
        link("live");
        show(message);
        linkAll();
      }
      link("the connection was closed; trying again");
    } catch (error) {
      if (error.status) return link(error.message);
      link("paceline ui does not answer; trying again");
    }
    await new Promise((wake) => setTimeout(wake, 1000 * wait));
  }
}

// A link to another page of this server takes the token along, also into another tab.
function linkAll() {
  for (const one of document.querySelectorAll('a[href^="/"]:not([href*="#"])')) {
    if (!one.hasAttribute("download")) one.href = `${one.getAttribute("href")}#${token}`;
  }
}

async function order(name, values) {
  const reply = await fetch(`/api/jobs/${job}/${name}`, {
    method: "POST", headers: { ...headers, "Content-Type": "application/json" },
    body: JSON.stringify(values),
  });
  query("#said").textContent = await reply.text();
}

function ask(question, done) {
  const dialog = query("dialog");
  query("p", dialog).textContent = question;
  dialog.returnValue = "";
  dialog.onclose = () => { if (dialog.returnValue === "yes") done(); };
  dialog.showModal();
}

const job = location.pathname.startsWith("/jobs/") && location.pathname.split("/")[2];
if (job) {
  query("#orders").hidden = false;
  query("#report").onclick = async () => {
    const reply = await fetch(`/api/jobs/${job}/report`, { headers });
    const a = document.createElement("a");
    a.href = URL.createObjectURL(await reply.blob());
    a.download = `${job}.html`;
    a.click();
  };
  query("#stop").onclick = () => ask(
    "Stop the job? Its workers finish their step and make one more cut; it can be resumed.",
    () => order("stop", {}));
  query("#scale").onsubmit = (event) => {
    event.preventDefault();
    const workers = query("#workers").valueAsNumber;
    ask(`Go on with ${workers} workers?`, () => order("scale", { workers }));
  };
  query("#kill").onsubmit = (event) => {
    event.preventDefault();
    const node = query("#node").value.trim();
    ask(`Kill the process of ${node}, as a crash would? It is started again.`,
      () => order("kill", { node }));
  };
  follow(`/api/jobs/${job}`);
} else if (location.pathname === "/compare") {
  follow(`/api/compare${location.search}`);
} else {
  query("#overview").hidden = false;
  const filter = query("#filter"), apply = () => {
    for (const row of document.querySelectorAll("table.jobs tr[data-job]")) {
      row.hidden = !row.textContent.toLowerCase().includes(filter.value.toLowerCase());
    }
  };
  filter.oninput = apply;
  new MutationObserver(apply).observe(query("#page"), { childList: true, subtree: true });
  query("#compare").onsubmit = (event) => {
    event.preventDefault();
    const chosen = [...document.querySelectorAll("table.jobs input:checked")].map((one) => one.value);
    if (chosen.length !== 2) { query("#said").textContent = "Choose two jobs."; return; }
    location.href = `/compare?jobs=${chosen.map(encodeURIComponent).join(",")}#${token}`;
  };
  follow("/api/jobs");
}
