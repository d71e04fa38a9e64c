//! How an active message goes, and how its data comes.

use uct::api::LinearCost;

use super::least;
use crate::AmFlags;
use crate::mem::TransferError;

/// How a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// At once, with its data.
    Eager,
    /// Announced: the receiver says what becomes of the data.
    Rendezvous,
}

/// How the data of a rendezvous comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// By messages, which the receiver asks for.
    Messages,
    /// The receiver reads it where the sender has it.
    Read,
}

/// Bytes that tell the length of a header.
const HEADER_LEN: usize = 2;

/// How `len` bytes of data, imported or not, go with a header of so many bytes, where a message has `max` at most.
///
/// # Errors
/// They cannot go as `flags` say.
pub(crate) fn message(
    flags: AmFlags,
    (len, imported): (usize, bool),
    header: usize,
    max: usize,
) -> Result<Message, TransferError> {
    let fits = len.saturating_add(header + HEADER_LEN) <= max;
    if flags.contains(AmFlags::EAGER) {
        return match () {
            () if imported => Err(TransferError::EagerImport),
            () if flags.contains(AmFlags::RNDV) => Ok(Message::Rendezvous),
            () if fits => Ok(Message::Eager),
            () => Err(TransferError::TooLong { len: len as u64, max: (max - HEADER_LEN) as u64 }),
        };
    }
    let is_announced = flags.contains(AmFlags::RNDV) || imported || !fits;
    Ok(if is_announced { Message::Rendezvous } else { Message::Eager })
}

/// How `len` bytes that were announced come, where a message costs so much, and reading the sender's memory, if that can be done.
pub(crate) fn data(len: u64, message: LinearCost, read: Option<LinearCost>) -> Data {
    // The sender is asked, and sends; after reading it is told, which nobody waits for.
    let asked = message.at(0) + message.at(len);
    match read {
        Some(read) if read.at(len) < asked => Data::Read,
        _ => Data::Messages,
    }
}

/// From how many bytes on announced data is read; `None`: long data is not.
pub(crate) fn read_from(message: LinearCost, read: LinearCost) -> Option<u64> {
    least(|len| data(len, message, Some(read)) == Data::Read)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX: usize = 1000;

    #[test]
    fn flags_say_how_a_message_goes_and_else_its_size() {
        let none = AmFlags::empty();
        let way = |flags, len, imported, header| message(flags, (len, imported), header, MAX);
        assert_eq!(way(none, 998, false, 0), Ok(Message::Eager));
        assert_eq!(way(none, 999, false, 0), Ok(Message::Rendezvous));
        assert_eq!(way(none, 400, false, 598), Ok(Message::Eager));
        assert_eq!(way(none, 400, false, 599), Ok(Message::Rendezvous), "it does not fit");
        assert_eq!(way(none, 0, true, 0), Ok(Message::Rendezvous), "imported memory is not copied at once");
        assert_eq!(way(none, usize::MAX, false, 9), Ok(Message::Rendezvous));
        assert_eq!(way(AmFlags::RNDV, 0, false, 0), Ok(Message::Rendezvous));
        assert_eq!(way(AmFlags::EAGER, 998, false, 0), Ok(Message::Eager), "as it was asked");
        assert_eq!(way(AmFlags::EAGER, 999, false, 0), Err(TransferError::TooLong { len: 999, max: 998 }));
        assert_eq!(way(AmFlags::EAGER, 1, true, 0), Err(TransferError::EagerImport));
    }

    proptest! {
        /// Whatever the costs are, none is chosen that costs more than the other one.
        #[test]
        fn data_comes_as_it_costs_least(len in 0_u64..1 << 40, a in 0.0..1e-5, b in 0.0..1e-8, c in 0.0..1e-5, d in 0.0..1e-8) {
            let (send, read) = (LinearCost { base: a, per_byte: b }, LinearCost { base: c, per_byte: d });
            let (by_messages, by_reading) = (send.at(0) + send.at(len), read.at(len));
            match data(len, send, Some(read)) {
                Data::Read => prop_assert!(by_reading < by_messages),
                Data::Messages => prop_assert!(by_messages <= by_reading),
            }
            prop_assert_eq!(data(len, send, None), Data::Messages);
            match read_from(send, read) {
                Some(from) if from > 0 => {
                    prop_assert_eq!(data(from, send, Some(read)), Data::Read);
                    prop_assert_eq!(data(from - 1, send, Some(read)), Data::Messages);
                }
                Some(_) => prop_assert_eq!(data(0, send, Some(read)), Data::Read),
                None => prop_assert_eq!(data(1 << 62, send, Some(read)), Data::Messages),
            }
        }
    }
}
