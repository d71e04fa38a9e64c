//! The process that is measured against.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use super::place::stay_on;
use super::protocol::{ANY_CPU, Answer, Command};
use super::side::{Far, Side};
use super::{Problem, echo};
use crate::frame::{self, FrameError};
use crate::parent;
use crate::ui::complain;

/// Does what it is asked to until the pipe is closed.
pub(crate) fn main() -> ExitCode {
    if io::stdin().is_terminal() || io::stdout().is_terminal() {
        complain("this is a part of `rucx perf`, which starts it by itself");
        return ExitCode::from(2);
    }
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("talking to rucx perf: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn serve() -> Result<(), FrameError> {
    let (mut from, mut to) = (io::stdin().lock(), io::stdout().lock());
    let Some(hello @ Command::Hello { parent, .. }) = frame::receive(&mut from)? else {
        return Err(FrameError::Malformed("the first command is Hello"));
    };
    parent::die_with(parent)?;
    let (side, far) = match meet(&hello) {
        Ok((side, far, ready)) => {
            frame::send(&mut to, &ready)?;
            (side, far)
        }
        Err(problem) => {
            frame::send(&mut to, &Answer::from(problem))?;
            // Stays until that was read.
            return frame::receive::<Command>(&mut from).map(drop);
        }
    };
    while let Some(command) = frame::receive(&mut from)? {
        let prepared = match &command {
            Command::EchoPuts { size } => side.clear(super::side::Place::of(*size)),
            _ => Ok(()),
        };
        let outcome = match prepared {
            Ok(()) => {
                frame::send(&mut to, &Answer::Begun {})?;
                play(&side, &far, &command)
            }
            Err(problem) => Err(problem),
        };
        frame::send(&mut to, &outcome.map_or_else(Answer::from, |()| Answer::Done {}))?;
    }
    Ok(())
}

fn meet(hello: &Command) -> Result<(Side, Far, Answer), Problem> {
    let Command::Hello { cpu, spins, size, card, .. } = hello else {
        return Err(out_of_place());
    };
    // Each does for the other one what that does for it.
    let exports = !card.handle.0.is_empty();
    // When the other side ends, this process is killed.
    let side = Side::new(None, (*size, exports), *spins, Box::new(|| Ok(())))?;
    let far = side.connect(card)?;
    let card = side.card()?;
    stay_on(Some(*cpu).filter(|cpu| *cpu != ANY_CPU));
    Ok((side, far, Answer::Ready { card }))
}

fn play(side: &Side, far: &Far, command: &Command) -> Result<(), Problem> {
    match command {
        Command::EchoPuts { size } => echo::puts(side, far, *size),
        Command::EchoMessages { size } => echo::messages(side, far, *size),
        Command::Take { size } => echo::take(side, far, *size),
        Command::Hello { .. } => Err(out_of_place()),
    }
}

fn out_of_place() -> Problem {
    Problem::new("a command out of place", "the first one, and only that, is Hello", "report it")
}
