/* An image, or a file with a vector, dropped or pasted anywhere on the search page. */
"use strict";

(() => {
  const find = (selector, within = document) => within.querySelector(selector);

  function uploadFile(file) {
    const field = find("#file");
    if (!file || !field) return;
    const transfer = new DataTransfer();
    transfer.items.add(file);
    field.files = transfer.files;
    field.form.requestSubmit();
  }

  const hasFiles = (event) => find("#file") && [...(event.dataTransfer?.types ?? [])].includes("Files");
  document.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dropping");
  });
  document.addEventListener("drop", (event) => {
    document.body.classList.remove("dropping");
    if (!hasFiles(event)) return;
    event.preventDefault();
    uploadFile(event.dataTransfer.files[0]);
  });
  document.addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])][0];
    if (file) {
      event.preventDefault();
      uploadFile(file);
    }
  });
})();
