// While a cluster is being checked, its page polls the result every second.

import { $, fetchPage } from "./dom.js";
import { localise } from "./format.js";
import { morph } from "./regions.js";

const EVERY = 1000; // milliseconds
const PARTS = ["cluster-title", "cluster-state"];

function later() {
  if ($("#cluster-title[data-checking]")) setTimeout(look, EVERY);
}

async function look() {
  try {
    const fresh = await fetchPage(location.href);
    if (fresh) show(fresh);
  } finally {
    later();
  }
}

function show(fresh) {
  for (const id of PARTS) {
    const old = document.getElementById(id), next = fresh.getElementById(id);
    if (next) { morph(old, next); localise(old); }
  }
}

later();
