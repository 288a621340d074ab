// The simulator: a recording, a moment, and the state of the engine then. The link is this page's only state.

import { get, query } from "../api.js";
import { ask, card, choice, empty, fault, field, fill, h, head, note } from "../dom.js";
import { counted } from "../format.js";
import { keep } from "../router.js";
import { Stage } from "../stage.js";

const SPEEDS = [["20", "very slow"], ["100", "slow"], ["400", "calm"], ["1000", "as it is"], ["4000", "quick"]];
const TICK_MS = 250;

export async function draw(main, words, params, signal) {
  style();
  const view = new View(main, signal);
  fill(main, head("Simulator"), h("p", { class: "hint" }, "Starting the engine …"));
  view.catalogue = await get(`/api/simulator${query({ session: view.session })}`, signal);
  view.frame();
  const lesson = params.get("lesson");
  const at = params.get("at");
  if (params.get("tape")) await view.open(params.get("tape"), at === null ? -1 : Number(at), view.lesson(lesson));
  else await view.begin(view.lesson(lesson) ?? null);
}

function style() {
  if (document.querySelector('link[href="/static/simulator.css"]')) return;
  document.head.append(h("link", { rel: "stylesheet", href: "/static/simulator.css" }));
}

class View {
  constructor(main, signal) {
    this.main = main;
    this.signal = signal;
    this.session = Math.random().toString(36).slice(2);
    this.link = "";
    this.at = 0;
    this.end = 0;
    this.look = null;
    this.story = [];
    this.isStory = false; // A seed of a campaign: there is its story, and nothing to do.
    this.chosen = null;
    this.answered = false;
    this.speed = 1000;
    this.timer = null;
    this.busy = false;
    this.last = Promise.resolve();
    signal.addEventListener("abort", () => this.pause());
  }

  lesson(name) {
    return this.catalogue.themes.flatMap((each) => each.lessons).find((each) => each.name === name);
  }

  // The parts of the page.

  frame() {
    this.isStory = false;
    this.actionsBox = this.actions();
    this.lessonBox = h("div", { class: "pad sim-lesson" });
    this.controls = h("div", { class: "sim-controls" });
    this.said = h("div");
    this.stageBox = h("div");
    this.storyBox = h("div");
    this.wireBox = h("div");
    this.verdictBox = h("div", { class: "pad sim-verdict" });
    this.stage = new Stage((number) => this.inspect(number));
    this.select = h("select", { "aria-label": "Lesson", onchange: () => this.begin(this.lesson(this.select.value) ?? null) },
      h("option", { value: "" }, "No lesson: an empty cluster"),
      this.catalogue.themes.map((theme) => h("optgroup", { label: theme.title }, theme.lessons.map((each) => h("option", { value: each.name }, each.title)))));
    fill(this.main,
      head("Simulator", { actions: [h("button", { onclick: () => this.copy() }, "Copy link"), h("button", { onclick: () => this.fresh() }, "New run …")] }),
      h("p", { class: "hint" }, "The real engine in a simulated world with its own clock. A run is a seed and a list of actions: the same link always replays the same run."),
      card(h("div", { class: "cardhead tools" }, h("h2", {}, "Lesson"), this.select), this.lessonBox),
      this.said,
      card(null, this.controls, this.stageBox),
      h("div", { class: "columns" },
        h("div", { class: "stack" }, card("Actions", this.actionsBox), card("Result", this.verdictBox)),
        h("div", { class: "stack" }, card("Events", this.storyBox), card("On the wire", this.wireBox))));
    fill(this.stageBox, this.stage.element);
    this.drawControls();
  }

  drawControls() {
    this.playButton = h("button", { class: "main", onclick: () => (this.timer ? this.pause() : this.play()) }, "Play");
    this.slider = h("input", { type: "range", min: "0", max: "1", step: "1", value: "0", "aria-label": "Time in the run, in milliseconds", onchange: () => this.go(Number(this.slider.value)) });
    this.clock = h("span", { class: "sim-time" }, "0.000 s");
    this.speedBox = choice("speed", SPEEDS, String(this.speed), { "aria-label": "Speed", onchange: () => { this.speed = Number(this.speedBox.value); } });
    fill(this.controls,
      h("button", { onclick: () => this.go(0), title: "Play it again from the seed" }, "To the start"),
      h("button", { onclick: () => this.step(), title: "To the next message or event" }, "Step"),
      this.playButton, this.speedBox,
      h("button", { onclick: () => this.go(this.at + 1000) }, "+1 s"),
      this.slider, this.clock);
  }

  actions() {
    return h("div", { class: "sim-actions" }, this.catalogue.actions.map((each) => {
      const inputs = each.fields.map((one) => [one, input(one)]);
      const form = h("form", {}, h("p", { class: "hint" }, each.meaning), inputs.map(([one, made]) => (one.kind === "flag" ? h("label", { class: "check" }, made, label(one.name)) : field(label(one.name), made))),
        h("button", { type: "submit" }, "Do it"));
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        const fields = Object.fromEntries(inputs.map(([one, made]) => [one.name, value(one, made)]));
        this.do([each.word, fields]);
      });
      return h("details", {}, h("summary", {}, title(each)), form);
    }));
  }

  drawLesson() {
    const lesson = this.chosen;
    this.select.value = lesson?.name ?? "";
    if (!lesson) {
      fill(this.lessonBox, h("p", {}, "Choose a lesson, or create a topic and continue from there: every action below applies to the cluster at this moment."));
      return;
    }
    const asks = this.at >= lesson.question_ms;
    fill(this.lessonBox,
      h("p", {}, lesson.about),
      asks ? h("div", { class: "ask" }, h("strong", {}, lesson.question),
        this.answered ? h("p", {}, lesson.answer) : h("button", { class: "main", onclick: () => this.answer(), "data-focus": "answer" }, "Play the answer"))
        : h("p", { class: "hint" }, "Play: it stops at a question."),
      h("details", {}, h("summary", { class: "hint" }, "What it shows"), h("ul", {}, lesson.claims.map((each) => h("li", {}, each)))));
  }

  // Time.

  begin(lesson) {
    this.pause();
    if (this.isStory) this.frame();
    this.chosen = lesson;
    this.answered = false;
    this.forget();
    keep({ tape: "", at: "", lesson: lesson?.name ?? "" });
    // A lesson opens at its start, with its whole recording ahead.
    return lesson ? this.ask({ tape: lesson.link, at: 0 }) : this.ask({ seed: 1 + Math.floor(Math.random() * 100000), at: 0 });
  }

  open(tape, at, lesson) {
    this.pause();
    this.chosen = lesson ?? null;
    this.answered = Boolean(lesson) && at > lesson.question_ms;
    this.forget();
    if (tape.startsWith("campaign.")) fill(this.said, h("p", { class: "hint" }, "The whole run of this seed is played, which may take a minute."));
    return this.ask({ tape, at });
  }

  forget() {
    this.story = [];
    this.look = null;
    this.link = "";
  }

  go(at) {
    const to = Math.max(0, Math.round(at));
    if (this.chosen && !this.answered && this.at < this.chosen.question_ms && to > this.chosen.question_ms) return this.ask({ at: this.chosen.question_ms });
    return this.ask({ at: to });
  }

  step() {
    this.pause();
    return this.ask({ step: true });
  }

  play() {
    this.playButton.textContent = "Pause";
    this.timer = setInterval(() => this.tick(), TICK_MS);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    if (this.playButton) this.playButton.textContent = "Play";
  }

  async tick() {
    if (this.busy || document.hidden) return;
    const lesson = this.chosen;
    const limit = lesson && !this.answered ? lesson.question_ms : lesson && this.end === lesson.end_ms ? lesson.end_ms : Infinity;
    if (this.at >= limit) { this.pause(); return; }
    await this.ask({ at: Math.min(limit, this.at + Math.max(1, Math.round((this.speed * TICK_MS) / 1000))) });
  }

  answer() {
    this.answered = true;
    this.drawLesson();
    this.play();
  }

  do(action) {
    return this.ask({ add: JSON.stringify(action) });
  }

  // One request to the engine at a time; its response is drawn.
  ask(question) {
    return this.queue(() => this.put(question));
  }

  queue(job) {
    const done = this.last.then(() => (this.signal.aborted ? null : job()));
    this.last = done.catch(() => {});
    return done;
  }

  // Without a moment, it continues where the previous request ended.
  async put({ tape = this.link, at = this.at, add = "", step = false, seed = "" }) {
    this.busy = true;
    const before = this.look ? this.at : 0;
    const isOn = this.look !== null && at >= this.at;
    try {
      const look = await get(`/api/simulator/look${query({
        tape, at: String(at), add, step, seed, session: this.session,
        since: isOn ? String(before) : "-1", line: isOn ? String(this.story.length) : "0" })}`, this.signal);
      fill(this.said);
      if (look.campaign) { this.campaign(look.campaign); return; }
      if (!isOn) this.story = [];
      this.story.push(...look.story);
      [this.link, this.at, this.end, this.look] = [look.link, look.now_ms, look.end_ms, look];
      if (this.chosen && add) this.chosen = null;
      keep({ tape: this.link, at: this.at, lesson: this.chosen?.name ?? "" });
      this.paint(isOn ? before : this.at);
    } catch (error) {
      if (this.signal.aborted) return;
      this.pause();
      fill(this.said, fault(error));
    } finally {
      this.busy = false;
    }
  }

  paint(before) {
    const look = this.look;
    this.slider.max = String(Math.max(this.end, this.chosen?.end_ms ?? 0, 1));
    this.slider.value = String(this.at);
    this.clock.textContent = `${(this.at / 1000).toFixed(3)} s`;
    this.drawLesson();
    this.stage.draw(look, before, this.timer ? TICK_MS : 0);
    this.drawStory();
    this.drawWire(look.flights);
    this.drawVerdict(look.verdict);
  }

  drawStory() {
    const lines = this.isStory ? this.story : this.story.slice(-250);
    if (!lines.length) { fill(this.storyBox, empty("Nothing yet.")); return; }
    const list = h("ol", { class: "sim-story", tabindex: "0", "aria-label": "Events, oldest first" }, lines.map((line) => h("li", { class: line.who === "you" ? "you" : "" },
      h("span", { class: "when" }, (line.at_ms / 1000).toFixed(3)), h("span", { class: "who" }, line.who), h("span", { class: "what" }, line.text))));
    fill(this.storyBox, list);
    list.scrollTop = list.scrollHeight;
  }

  drawWire(flights) {
    const shown = flights.filter((each) => !["heartbeat", "quorum"].includes(each.theme)).slice(-40).reverse();
    fill(this.wireBox, shown.length ? h("ul", { class: "sim-wire", "aria-label": "Messages, latest first" }, shown.map((each) => h("li", {}, h("button", { type: "button", onclick: () => this.inspect(each.number), "data-focus": `m${each.number}` },
      h("i", { class: `m-${each.theme}` }), `${each.from} → ${each.to}: ${each.api || "…"}${each.is_response ? " response" : ""}${each.records ? `, ${counted(each.records, "record")}` : ""}`,
      h("span", { class: "hint" }, each.is_lost ? "lost" : each.arrived_ms === null ? "under way" : `arrived ${(each.arrived_ms / 1000).toFixed(3)}`)))))
      : empty("No messages in this step.", "Step or play: messages between clients and nodes are listed here and can be opened."));
  }

  drawVerdict(verdict) {
    const some = (found) => `${found.count}${found.names.length ? `: ${found.names.join(", ")}${found.count > found.names.length ? " …" : ""}` : ""}`;
    const line = (text, found, kind) => (found.count ? h("div", {}, h("span", { class: kind }, text), " ", some(found)) : null);
    fill(this.verdictBox,
      h("div", {}, `${counted(verdict.acknowledged, "record")} acknowledged`, verdict.lost.count ? "" : h("span", { class: "hint" }, " · none of them lost")),
      line("Acknowledged, then lost:", verdict.lost, "loss"),
      line("In the log twice:", verdict.twice_in_log, "odd"),
      line("Deleted by retention:", verdict.deleted, "soft"),
      line("Removed by compaction:", verdict.compacted, "soft"),
      Object.entries(verdict.groups).map(([group, facts]) => h("div", {}, h("strong", {}, group), ` handled ${counted(facts.records, "record")} of ${facts.topic}${facts.deliveries ? `, ${facts.deliveries} delivered` : ""}`,
        line("Done twice:", facts.twice, "odd"), line("Passed over:", facts.passed_over, "loss"), line("Dead letters:", facts.dead_letters, "odd"), facts.given_up ? line("Given up:", facts.given_up, "loss") : null, line("Failing:", facts.failing, "loss"),
        facts.recognised ? h("div", { class: "good-text" }, `${counted(facts.recognised, "repeat")} recognised and ignored`) : null,
        facts.outside_twice ? h("div", { class: "odd" }, `${facts.outside_twice} external effects happened twice`) : null)),
      Object.entries(verdict.outputs).map(([topic, facts]) => h("div", {}, h("strong", {}, topic), ` shows ${counted(facts.sources, "result")}`, facts.twice.count ? h("span", { class: "loss" }, `, ${facts.twice.count} twice`) : ", each once", facts.not_shown ? `; ${facts.not_shown} are not shown` : "")));
  }

  campaign(found) {
    this.isStory = true;
    [this.link, this.story] = [found.link, found.story];
    fill(this.lessonBox, h("p", {}, `Campaign seed ${found.link}, shown as a list of events.`),
      found.findings.length ? found.findings.map((each) => (each.includes("\n") ? h("pre", { class: "data" }, each) : h("p", { class: "fault" }, each))) : h("p", { class: "good-text" }, "No violation was found."));
    fill(this.controls);
    fill(this.stageBox, h("details", { class: "pad" }, h("summary", {}, "Its plan"), h("pre", { class: "data" }, found.plan)));
    fill(this.actionsBox, empty("A campaign chooses its own actions.", "Choose a lesson or start a new run to act."));
    this.drawStory();
    fill(this.verdictBox, h("p", { class: "hint" }, found.story_lines > found.story.length ? `The last ${found.story.length} of ${found.story_lines} lines` : `${found.story_lines} lines`));
    fill(this.wireBox, empty("A campaign shows no messages."));
  }

  // Other things.

  async inspect(number) {
    this.pause();
    try {
      const found = await this.queue(() => get(`/api/simulator/flight${query({ tape: this.link, at: String(this.at), number: String(number), session: this.session })}`, this.signal));
      if (!found) return;
      ask({
        title: `${found.api || "A message"}${found.is_response ? " response" : ""}, version ${found.version}`, action: "Close",
        body: [h("dl", { class: "facts" }, h("dt", {}, "From"), h("dd", {}, found.from), h("dt", {}, "To"), h("dd", {}, found.to), h("dt", {}, "Size"), h("dd", {}, `${found.bytes} bytes`),
          h("dt", {}, "Left"), h("dd", {}, `${found.sent_ms / 1000} s`), h("dt", {}, "Arrived"), h("dd", {}, found.is_lost ? "never" : found.arrived_ms === null ? "not yet" : `${found.arrived_ms / 1000} s`)),
          found.batches.length ? h("pre", { class: "data" }, JSON.stringify(found.batches, null, 2)) : null,
          h("pre", { class: "data" }, found.body === null ? "Only a part of it was kept." : JSON.stringify(found.body, null, 2))],
        act: async () => {},
      });
    } catch (error) {
      if (!this.signal.aborted) note(error.message);
    }
  }

  async copy() {
    const address = `${location.origin}/simulator${query({ tape: this.link, at: this.isStory ? "" : String(this.at), lesson: this.chosen?.name ?? "" })}`;
    try {
      await navigator.clipboard.writeText(address);
      note("Link copied. In a terminal: millpond sim replay LINK");
    } catch {
      ask({ title: "The link of this run", action: "Close", body: [h("textarea", { readonly: true, "aria-label": "Link" }, address)], act: async () => {} });
    }
  }

  fresh() {
    ask({
      title: "New run", action: "Start",
      body: [h("div", { class: "two" }, field("Nodes", h("input", { name: "nodes", type: "number", min: "1", max: "5", value: "3", required: true })),
        field("Seed", h("input", { name: "seed", type: "number", min: "0", max: "4294967295", value: "1", required: true }), "Another seed means other delays and other random choices."))],
      act: async (form) => {
        this.pause();
        if (this.isStory) this.frame();
        this.chosen = null;
        this.forget();
        keep({ tape: "", at: "", lesson: "" });
        const look = await this.queue(() => get(`/api/simulator/look${query({ at: "0", nodes: form.elements.nodes.value, seed: form.elements.seed.value, session: this.session })}`, this.signal));
        await this.ask({ tape: look.link, at: 0 });
      },
    });
  }
}

const TITLES = {
  topic: "Create a topic", set: "Change a setting", partitions: "Add partitions", produce: "Produce records", transaction: "Run a transaction",
  consumer: "Start a consumer", share: "Start queue workers", group: "Change a queue setting", leave: "Stop a consumer", kill: "Kill a consumer", reset: "Reset offsets", down: "Take a node down", up: "Bring nodes back",
  cut: "Cut the network", slow: "Slow the network", heal: "Heal the network", elect: "Unclean election",
};

function title(action) {
  return TITLES[action.word] ?? action.word;
}

function label(name) {
  const text = name.replaceAll("_ms", " (ms)").replaceAll("_", " ");
  return text[0].toUpperCase() + text.slice(1);
}

function input(one) {
  if (one.kind === "number") return h("input", { type: "number", min: String(one.lowest), max: String(one.highest), value: String(one.default), required: true });
  if (one.kind === "flag") return h("input", { type: "checkbox", checked: one.default });
  if (one.kind === "choice") return choice(one.name, one.choices.map((each) => [each, each]), one.default);
  if (one.kind === "keys") return h("input", { value: one.default.join(", "), placeholder: "ann, bob", autocomplete: "off" });
  return h("input", { value: one.default, maxlength: one.kind === "name" ? "40" : "200", required: one.kind === "name" && !one.is_optional, autocomplete: "off", spellcheck: "false" });
}

function value(one, made) {
  if (one.kind === "number") return made.valueAsNumber;
  if (one.kind === "flag") return made.checked;
  if (one.kind === "keys") return made.value.split(",").map((each) => each.trim()).filter(Boolean);
  return made.value.trim();
}
