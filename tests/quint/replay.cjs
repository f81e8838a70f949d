// Replays traces in the model: one line of input is a trace, [name, events in ITF]; one line of output is the verdict.
//
//     replay.qnt --parse, check--> evaluator (the typescript backend of `quint run`) --one step for each event--> objection
//
// The command `quint run` takes a trace only as a literal in a module, and checks the types of that: two minutes for
// 500 events. So this program sets the variable `event` itself.
const { createInterface } = require("node:readline");
const [, , quint, input] = process.argv;
const { load, parse, typecheck } = require(`${quint}/dist/src/cliCommands.js`);
const { Evaluator } = require(`${quint}/dist/src/runtime/impl/evaluator.js`);
const { buildExpr } = require(`${quint}/dist/src/runtime/impl/builder.js`);
const { rv } = require(`${quint}/dist/src/runtime/impl/runtimeValue.js`);
const { newTraceRecorder } = require(`${quint}/dist/src/runtime/trace.js`);
const { toExpr } = require(`${quint}/dist/src/cliHelpers.js`);
const { newRng } = require(`${quint}/dist/src/rng.js`);
const { ofItf } = require(`${quint}/dist/src/itf.js`);
const { right } = require(`${require("node:path").dirname(quint)}/../@sweet-monads/either`);

const value = (result) => {
  if (result.isLeft()) throw new Error(JSON.stringify(result.value, (_, v) => (typeof v === "bigint" ? `${v}` : v)).slice(0, 2000));
  return result.value;
};

async function main() {
  const args = { input, main: "replay", init: "opens", step: "happens", verbosity: 0 };
  const stage = value(await typecheck(value(await parse(value(await load(args))))));
  const evaluator = new Evaluator(stage.table, newTraceRecorder(0, newRng(1n)), newRng(1n));
  const [opens, happens, objection] = ["opens", "happens", "objection"].map((name) =>
    buildExpr(evaluator.builder, value(toExpr({ ...stage, args }, name))),
  );
  const register = () => evaluator.ctx.varStorage.vars.valueSeq().find((one) => one.name.endsWith("event"));
  for await (const line of createInterface({ input: process.stdin })) {
    const [name, events] = JSON.parse(line);
    evaluator.reset();
    value(opens(evaluator.ctx));
    evaluator.shift();
    let why = "";
    let at = 0;
    for (; at < events.length && why === ""; at += 1) {
      register().value = right(rv.fromQuintEx(ofItf({ states: [events[at]] })[0]));
      evaluator.ctx.varStorage.clearCaches();
      value(happens(evaluator.ctx));
      evaluator.shift();
      evaluator.trace.reset();
      why = rv.toQuintEx(value(objection(evaluator.ctx))).value;
    }
    process.stdout.write(`${JSON.stringify({ name, events: at, of: events.length, objection: why })}\n`);
  }
}

main().catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exitCode = 1;
});
