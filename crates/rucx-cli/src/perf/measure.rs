//! One test at one size.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::hint::black_box;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ucp::{LaneUse, Request};

use super::child::Child;
use super::echo::{self, Puts, window};
use super::operand::{Operand, Operands};
use super::place::{Placement, stay_on};
use super::protocol::{ANY_CPU, Answer, Command};
use super::samples::{Samples, Sorted};
use super::side::{Far, MESSAGE, Place, Side};
use super::{Mode, Problem, Test};

/// In bandwidth and rate, the clock is looked at after about so many bytes, and so many operations at most.
const BATCH_BYTES: u64 = 64 << 10;
const BATCH: u64 = 256;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) test: Test,
    pub(super) mode: Mode,
    pub(super) size: u64,
    pub(super) iters: u32,
    pub(super) warmup: u32,
    pub(super) limit: Duration,
}

/// What has come of it.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) iterations: u64,
    /// How long they took, all together.
    pub(super) time: Duration,
    /// How long each took, where each was timed.
    pub(super) each: Option<Sorted>,
    /// How many ways each went: a round trip is two.
    pub(super) ways: u32,
}

/// The two processes.
pub(super) struct Bench {
    child: Rc<Child>,
    side: Side,
    far: Far,
}

impl Bench {
    /// Starts the peer, and connects to it.
    pub(super) fn start(
        tls: Option<&str>,
        variables: &[(OsString, OsString)],
        placement: &Placement,
        (largest, imported): (u64, bool),
    ) -> Result<Self, Problem> {
        let child = Rc::new(Child::start(variables)?);
        let (watched, spins) = (Rc::clone(&child), placement.spins());
        let side = Side::new(tls, (largest, imported), spins, Box::new(move || watched.check()))?;
        let card = side.card()?;
        let (parent, cpu) = (std::process::id(), placement.peer.unwrap_or(ANY_CPU));
        let hello = Command::Hello { parent, cpu, spins, size: largest, card };
        let far = match child.ask(&hello)? {
            Answer::Ready { card } => side.connect(&card)?,
            other => return Err(child.unexpected(other)),
        };
        // Now: the threads that were started before go where there is room.
        stay_on(placement.here);
        Ok(Self { child, side, far })
    }

    /// The transport of messages.
    pub(super) fn messages(&self) -> &'static str {
        self.far.ep.info().transport
    }

    /// What reads the data of long messages.
    pub(super) fn data(&self) -> Option<&'static str> {
        let lanes = self.far.ep.info().lanes;
        lanes.iter().find(|lane| lane.of == LaneUse::Data).map(|lane| lane.transport)
    }

    /// The transport of memory.
    pub(super) fn memory(&self) -> &'static str {
        self.far.memory.transport()
    }

    /// The transport of imported memory, where operands are of that.
    pub(super) fn imported(&self) -> Option<&'static str> {
        match &self.far.operands {
            Operands::Own => None,
            Operands::Imported(memory) => Some(memory.transport()),
        }
    }

    /// Has the peer end.
    pub(super) fn end(self) -> Result<(), Problem> {
        drop(self.far);
        self.child.end()
    }

    pub(super) fn measure(&mut self, plan: &Plan) -> Result<Measured, Problem> {
        match (plan.test, plan.mode) {
            (Test::Put, Mode::Lat) => self.put_latency(plan),
            (Test::Get, Mode::Lat) => self.get_latency(plan),
            (Test::Am, Mode::Lat) => self.am_latency(plan),
            (Test::Fadd, Mode::Lat) => each(plan, 1, || self.fetch_add(plan.size)),
            (Test::Fadd, _) => many(plan, || self.fetch_add(plan.size), || Ok(())),
            (Test::Put, _) => self.put_stream(plan),
            (Test::Get, _) => self.get_stream(plan),
            (Test::Am, _) => self.am_stream(plan),
        }
    }

    fn begin(&self, command: &Command) -> Result<(), Problem> {
        match self.child.ask(command)? {
            Answer::Begun {} => Ok(()),
            other => Err(self.child.unexpected(other)),
        }
    }

    fn done(&self) -> Result<(), Problem> {
        match self.child.answer()? {
            Answer::Done {} => Ok(()),
            other => Err(self.child.unexpected(other)),
        }
    }

    fn put_latency(&self, plan: &Plan) -> Result<Measured, Problem> {
        let (side, far, place) = (&self.side, &self.far, Place::of(plan.size));
        side.clear(place)?;
        self.begin(&Command::EchoPuts { size: plan.size })?;
        let (mut puts, mut last) = (Puts::new(side, far, plan.size)?, 0);
        let measured = each(plan, 2, || {
            puts.put()?;
            last = side.changed(place, last)?;
            Ok(())
        })?;
        puts.last()?;
        self.done()?;
        Ok(measured)
    }

    fn get_latency(&self, plan: &Plan) -> Result<Measured, Problem> {
        let (place, mut data) = (Place::of(plan.size), self.far.operand(plan.size, 1)?);
        each(plan, 1, || self.get(place, &mut data))
    }

    fn am_latency(&self, plan: &Plan) -> Result<Measured, Problem> {
        let (side, far) = (&self.side, &self.far);
        self.begin(&Command::EchoMessages { size: plan.size })?;
        let (mut data, mut room) = (far.operand(plan.size, 1)?, far.operand(plan.size, 2)?);
        let mut seen = side.messages();
        let measured = each(plan, 2, || {
            let sent = far.ep.am_send(MESSAGE, b"", std::mem::take(&mut data));
            side.receive(&mut seen, &mut room)?;
            data = side.finish(sent)?;
            Ok(())
        })?;
        echo::last_message(side, far)?;
        self.done()?;
        Ok(measured)
    }

    fn put_stream(&self, plan: &Plan) -> Result<Measured, Problem> {
        let (side, far, place) = (&self.side, &self.far, Place::of(plan.size));
        let mut data = far.operand(plan.size, 1)?;
        let one = || {
            data = side.finish(far.memory.put(place.offset, std::mem::take(&mut data)))?;
            Ok(())
        };
        many(plan, one, || side.finish(far.ep.flush()))
    }

    fn get_stream(&self, plan: &Plan) -> Result<Measured, Problem> {
        let (place, mut data) = (Place::of(plan.size), self.far.operand(plan.size, 1)?);
        many(plan, || self.get(place, &mut data), || Ok(()))
    }

    #[inline]
    fn get(&self, place: Place, data: &mut Operand) -> Result<(), Problem> {
        *data = self.side.finish(self.far.memory.get(place.offset, std::mem::take(data)))?;
        Ok(())
    }

    /// One is added to the word of that size.
    #[inline]
    fn fetch_add(&self, size: u64) -> Result<(), Problem> {
        let memory = &self.far.memory;
        match size {
            4 => _ = black_box(self.side.finish(memory.fetch_add(0, 1_u32))?),
            _ => _ = black_box(self.side.finish(memory.fetch_add(0, 1_u64))?),
        }
        Ok(())
    }

    fn am_stream(&self, plan: &Plan) -> Result<Measured, Problem> {
        let (side, far, most) = (&self.side, &self.far, window(plan.size));
        self.begin(&Command::Take { size: plan.size })?;
        // Of the process's own memory all are the same bytes, as C UCX's `ucx_perftest` has them: they stay in a cache.
        let first = match far.operand(plan.size, 1)? {
            Operand::Own(bytes) => Operand::Shared(bytes.into()),
            imported => imported,
        };
        let mut spare: Vec<Operand> = Vec::new();
        let mut under_way: VecDeque<Request<Operand>> = VecDeque::new();
        let before = side.messages();
        let one = || {
            let data = spare.pop().unwrap_or_else(|| first.clone());
            under_way.push_back(far.ep.am_send(MESSAGE, b"", data));
            // Those that have ended give their operands back; where there are too many, the oldest is waited for.
            while under_way.len() >= most || under_way.front().is_some_and(Request::is_ended) {
                spare.extend(under_way.pop_front().map(|request| side.finish(request)).transpose()?);
            }
            Ok(())
        };
        let all_taken = || {
            echo::last_message(side, far)?;
            let mut pace = side.pace();
            while side.messages() == before {
                side.worker.progress();
                pace.idle()?;
            }
            Ok(())
        };
        let measured = many(plan, one, all_taken)?;
        under_way.into_iter().try_for_each(|request| side.finish(request).map(drop))?;
        self.done()?;
        Ok(measured)
    }
}

/// Times single operations, each of which goes so many `ways`.
fn each(plan: &Plan, ways: u32, mut op: impl FnMut() -> Result<(), Problem>) -> Result<Measured, Problem> {
    let end = Instant::now() + plan.limit / 2;
    for _ in 0..plan.warmup {
        op()?;
        if Instant::now() > end {
            break;
        }
    }
    let mut samples = Samples::of(plan.iters);
    let end = Instant::now() + plan.limit;
    samples.begin();
    for _ in 0..plan.iters {
        op()?;
        if samples.end() > end {
            break;
        }
    }
    let each = samples.sorted();
    Ok(Measured { iterations: each.len() as u64, time: each.sum(), each: Some(each), ways })
}

/// Times many operations together, until what they have done is there for the other side.
fn many(
    plan: &Plan,
    mut op: impl FnMut() -> Result<(), Problem>,
    arrived: impl FnOnce() -> Result<(), Problem>,
) -> Result<Measured, Problem> {
    let batch = (BATCH_BYTES / plan.size).clamp(1, BATCH);
    let mut run = |most: u64, limit: Duration| {
        let begin = Instant::now();
        let mut made = 0;
        while made < most {
            let now = batch.min(most - made);
            for _ in 0..now {
                op()?;
            }
            made += now;
            if begin.elapsed() > limit {
                break;
            }
        }
        Ok((begin, made))
    };
    run(plan.warmup.into(), plan.limit / 2)?;
    let (begin, iterations) = run(plan.iters.into(), plan.limit)?;
    arrived()?;
    Ok(Measured { iterations, time: begin.elapsed(), each: None, ways: 1 })
}
