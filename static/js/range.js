// Shows the times of the analytics form in the reader's time zone; without scripts they are UTC, and labelled so.

import { $, $$ } from "./dom.js";

const pad = (number) => String(number).padStart(2, "0");
const fields = $$("#range input[type=datetime-local]");

for (const field of fields) {
  const at = new Date(`${field.value}Z`);
  if (Number.isNaN(at.getTime())) continue;
  field.value = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}T${pad(at.getHours())}:${pad(at.getMinutes())}`;
}
$("#range-zone").hidden = true;

// Convert back to UTC on submit.
$("#range").addEventListener("formdata", (event) => {
  for (const field of fields) if (field.value) event.formData.set(field.name, new Date(field.value).toISOString().slice(0, 16));
});
