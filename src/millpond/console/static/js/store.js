// What this browser stores for us. A browser that is set to store nothing is not an error.

export function recall(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

export function store(key, value) {
  try {
    localStorage.setItem(key, value);
  } catch {
    // Then the value lasts until the page is closed.
  }
}
