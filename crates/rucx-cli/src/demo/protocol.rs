//! What the demo and its roles say to each other: a command, then its answer.

use crate::frame::{Secret, messages, record};

record! {
    /// What a transport said.
    struct Said {
        /// Its name.
        transport: String,
        /// Whether it was yes.
        yes: bool,
        /// How, or why not.
        what: String,
    }
}

record! {
    /// An error of the library.
    struct Fault {
        /// Name of its status, as `Stale`.
        status: String,
        /// What it says.
        error: String,
        /// What to do about it.
        remedy: String,
        /// What each transport said.
        said: Vec<Said>,
    }
}

record! {
    /// An open descriptor.
    struct Descriptor {
        /// Its number.
        number: u32,
        /// What it is, as `/proc/self/fd` has it.
        what: String,
    }
}

record! {
    /// Calls of one kind, timed.
    struct Timing {
        /// Whether they wrote; else they read.
        write: bool,
        /// Bytes of a call.
        size: u64,
        /// Median time of a call, in picoseconds.
        median_ps: u64,
    }
}

messages! {
    /// What the demo asks of a role. `slot` numbers the role's regions, exports or imports.
    enum Command {
        /// Both: make a context.
        0 Hello { parent: u32 },
        /// HOST: map memory.
        1 Map { slot: u8, size: u64, read_only: bool },
        /// HOST: pack an export of a region.
        2 Pack { slot: u8, region: u8 },
        /// HOST: revoke an export.
        3 Revoke { slot: u8 },
        /// HOST: answer rings of the doorbell, until the last.
        4 Answer { region: u8 },
        /// HOST: import an export of its own, and time it.
        5 MeasureOwn { slot: u8 },
        /// DPU: import a handle.
        6 Import { slot: u8, handle: Secret },
        /// DPU: ring the doorbell, so many times at most.
        7 Ring { slot: u8, rounds: u64 },
        /// DPU: time an import.
        8 Measure { slot: u8 },
        /// DPU: try to write past the library, through the file of the exporter.
        9 WritePast { slot: u8, exporter: u32 },
        /// DPU: read the first page until that is refused.
        10 ReadOn { slot: u8 },
        /// All: write a pattern all over a region or import.
        11 Fill { slot: u8, seed: u64 },
        /// All: read all of it.
        12 Sum { slot: u8 },
        /// Both: read a word.
        13 Load { slot: u8, offset: u64 },
        /// Both: write a word.
        14 Store { slot: u8, offset: u64, value: u64 },
        /// HOST: how much CPU time have you taken?
        15 Usage {},
        /// PEER: map memory, and make a worker.
        16 Meet { size: u64 },
        /// DPU: connect to the PEER.
        17 Connect { address: Secret, rkey: Secret },
        /// DPU: the first half of the import from the PEER's memory, the second half to it; over and over for so long.
        18 Offload { slot: u8, millis: u64 },
    }
}

messages! {
    /// What a role answers.
    enum Report {
        /// It could not.
        0 Failed { fault: Fault },
        /// Done; nothing to tell.
        1 Done { nanos: u64 },
        /// To `Hello`.
        2 Ready { pid: u32, environment: Vec<String>, descriptors: Vec<Descriptor>, arguments: Vec<String> },
        /// To `Map`.
        3 Mapped { address: u64, len: u64, rights: String, said: Vec<Said>, nanos: u64 },
        /// To `Pack`.
        4 Packed { handle: Secret, debug: String, said: Vec<Said>, nanos: u64 },
        /// To `Import`; `again` is the same import a second time.
        5 Imported {
            transport: String,
            len: u64,
            rights: String,
            said: Vec<Said>,
            nanos: u64,
            again_nanos: u64,
            again_same: bool,
        },
        /// To `Fill` and `Sum`: crc32c of what was written or read.
        6 Moved { bytes: u64, crc: u32, nanos: u64 },
        /// To `Ring` and `Answer`: how many words were those expected, and the median round trip.
        7 Rang { right: u64, wrong: u64, median_ps: u64 },
        /// To `Measure` and `MeasureOwn`.
        8 Measured { transport: String, timings: Vec<Timing> },
        /// To `Load`.
        9 Word { value: u64 },
        /// To `WritePast`: the seals of the file, and what `pwrite` answered (0: it wrote).
        10 WrotePast { seals: u32, errno: u32 },
        /// To `WritePast`: the file could not be opened.
        11 NotTried { why: String },
        /// To `ReadOn`, first: it reads.
        12 Reading {},
        /// To `ReadOn`, at last: reads that saw the page as it was, and others; why it ended.
        13 Refused { same: u64, other: u64, fault: Fault },
        /// To `Usage`.
        14 Used { nanos: u64 },
        /// To `Meet`.
        15 Met { address: Secret, rkey: Secret, nanos: u64 },
        /// To `Connect`: the transport of messages and that of memory, whose bytes there are so many.
        16 Connected { messages: String, memory: String, len: u64, nanos: u64 },
        /// To `Offload`.
        17 Offloaded { pulled: u64, pull_nanos: u64, pushed: u64, push_nanos: u64 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame;

    #[test]
    fn a_handle_comes_over_and_is_not_shown() {
        let message = Command::Import { slot: 1, handle: Secret(vec![0xa5; 300]) };
        let mut bytes = Vec::new();
        frame::send(&mut bytes, &message).unwrap();
        assert_eq!(frame::receive(&mut &bytes[..]).unwrap(), Some(message.clone()));
        let shown = format!("{message:?}");
        assert!(shown.contains("<300 secret bytes>"), "{shown}");
        assert!(!shown.contains("165") && !shown.contains("a5"), "{shown}");
    }

    #[test]
    fn an_error_comes_over_with_all_it_says() {
        let said = vec![Said { transport: "shm".into(), yes: false, what: "gone".into() }];
        let fault = Fault { status: "Stale".into(), error: "stale".into(), remedy: "ask again".into(), said };
        let message = Report::Refused { same: 3, other: 0, fault };
        let mut bytes = Vec::new();
        frame::send(&mut bytes, &message).unwrap();
        assert_eq!(frame::receive(&mut &bytes[..]).unwrap(), Some(message));
    }
}
