//! The trial, with devices that do right and devices that do not.

#![allow(clippy::unwrap_used)] // tests

use ucs::config::Value;

use super::*;
use crate::api::Component;
use crate::transports::verbs::VerbsComponent;

#[cfg(feature = "rxe-tests")]
mod device;

const PAGE: usize = 4096;

/// What is wrong with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    WritesAtBeginning,
    ReadsFromBeginning,
    /// One byte too many.
    WritesMore,
    WritesNothing,
    ReadsZeros,
    KeepsPages,
    KeepsPagesForReading,
    /// At the request of this number.
    Fails(usize),
    NeverAnswers,
}

/// A device that is none, and its two pages.
struct Fake {
    wrong: Wrong,
    now: Vec<u8>,
    first: Vec<u8>,
    renewed: usize,
    requests: usize,
}

impl Fake {
    fn asked(&mut self) -> Result<(), Failure> {
        self.requests += 1;
        match self.wrong {
            Wrong::Fails(at) if at == self.requests => Err(Failure::Error("remote access error".to_owned())),
            Wrong::NeverAnswers => Err(Failure::Late),
            _ => Ok(()),
        }
    }

    fn old(&mut self, keeps: bool) -> &mut Vec<u8> {
        if keeps && self.renewed > 0 { &mut self.first } else { &mut self.now }
    }
}

impl Pages for Fake {
    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), Failure> {
        self.asked()?;
        let wrong = self.wrong;
        let pages = self.old(matches!(wrong, Wrong::KeepsPages));
        match wrong {
            Wrong::WritesAtBeginning => {
                let first = bytes.len().min(PAGE - at % PAGE);
                let page = at / PAGE * PAGE;
                pages[page..page + first].copy_from_slice(&bytes[..first]);
                let next = page + PAGE;
                bytes[first..].iter().enumerate().for_each(|(at, byte)| pages[next + at] = *byte);
            }
            Wrong::WritesNothing => {}
            _ => pages[at..at + bytes.len()].copy_from_slice(bytes),
        }
        if wrong == Wrong::WritesMore {
            pages[at + bytes.len()] ^= 1;
        }
        Ok(())
    }

    fn read(&mut self, at: usize, bytes: &mut [u8]) -> Result<(), Failure> {
        self.asked()?;
        let wrong = self.wrong;
        let pages = self.old(matches!(wrong, Wrong::KeepsPages | Wrong::KeepsPagesForReading));
        match wrong {
            Wrong::ReadsFromBeginning => {
                let first = bytes.len().min(PAGE - at % PAGE);
                let page = at / PAGE * PAGE;
                bytes[..first].copy_from_slice(&pages[page..page + first]);
                let rest = bytes.len() - first;
                bytes[first..].copy_from_slice(&pages[page + PAGE..][..rest]);
            }
            Wrong::ReadsZeros => bytes.fill(0),
            _ => bytes.copy_from_slice(&pages[at..at + bytes.len()]),
        }
        Ok(())
    }

    fn load(&self) -> Result<Vec<u8>, Failure> {
        Ok(self.now.clone())
    }

    fn store(&mut self, all: &[u8]) -> Result<(), Failure> {
        self.now.copy_from_slice(all);
        Ok(())
    }

    fn map_anew(&mut self) -> Result<(), Failure> {
        let old = std::mem::replace(&mut self.now, vec![0; 2 * PAGE]);
        if self.renewed == 0 {
            self.first = old;
        }
        self.renewed += 1;
        Ok(())
    }
}

/// What the trial says of such a device, and after how many requests.
fn tried(wrong: Wrong) -> (Result<(), Unproven>, usize) {
    let mut fake = Fake { wrong, now: vec![0; 2 * PAGE], first: Vec::new(), renewed: 0, requests: 0 };
    let tried = prove(&mut fake, PAGE);
    (tried, fake.requests)
}

#[test]
fn a_device_that_does_right_passes() {
    let (tried, requests) = tried(Wrong::Nothing);
    assert_eq!(tried, Ok(()));
    assert_eq!(requests, 9);
}

#[test]
fn a_device_that_does_wrong_is_refused_with_what_it_does() {
    for (wrong, expected) in [
        (Wrong::WritesAtBeginning, Unproven::WrittenAtBeginning),
        (Wrong::ReadsFromBeginning, Unproven::ReadFromBeginning),
        (Wrong::WritesMore, Unproven::WrittenElsewhere),
        (Wrong::WritesNothing, Unproven::NotWritten),
        (Wrong::ReadsZeros, Unproven::ReadElsewhere),
        (Wrong::KeepsPages, Unproven::OldPages),
        (Wrong::KeepsPagesForReading, Unproven::OldPages),
    ] {
        assert_eq!(tried(wrong).0, Err(expected), "{wrong:?}");
    }
}

#[test]
fn a_device_that_answers_with_an_error_is_refused_whenever_it_does() {
    let mut said = Vec::new();
    for at in 1..=9 {
        let (tried, requests) = tried(Wrong::Fails(at));
        assert_eq!(requests, at, "the first error is the last request");
        said.push(tried.unwrap_err().to_string());
    }
    said.sort();
    said.dedup();
    assert_eq!(
        said,
        ["reading by the device: remote access error", "writing by the device: remote access error"]
    );
}

#[test]
fn a_device_that_never_answers_is_asked_once() {
    let (tried, requests) = tried(Wrong::NeverAnswers);
    assert_eq!(requests, 1);
    assert_eq!(tried.unwrap_err().to_string(), "writing by the device: no answer within 5s");
}

#[test]
fn each_refusal_has_words_of_its_own() {
    let all = [
        Unproven::SwitchedOff,
        Unproven::NotOffered("on-demand paging"),
        Unproven::WrittenAtBeginning,
        Unproven::ReadFromBeginning,
        Unproven::WrittenElsewhere,
        Unproven::NotWritten,
        Unproven::ReadElsewhere,
        Unproven::OldPages,
        Unproven::Failed { what: "writing by the device", why: "remote access error".to_owned() },
        Unproven::Late { what: "writing by the device" },
    ];
    let mut words: Vec<_> = all.iter().map(ToString::to_string).collect();
    words.sort();
    words.dedup();
    assert_eq!(words.len(), all.len(), "{words:?}");
}

#[test]
fn what_a_device_does_not_offer_is_told() {
    let caps = |general, rc| {
        let mut caps = ibv_odp_caps { general_caps: general, ..Default::default() };
        caps.per_transport_caps.rc_odp_caps = rc;
        lacks(&caps)
    };
    let (write, read) = (Bits::IBV_ODP_SUPPORT_WRITE.0, Bits::IBV_ODP_SUPPORT_READ.0);
    assert_eq!(caps(0, 0), Some("on-demand paging"));
    assert_eq!(caps(0, write | read), Some("on-demand paging"));
    assert!(caps(1, read).unwrap().starts_with("WRITEs"));
    assert!(caps(1, write | Bits::IBV_ODP_SUPPORT_SEND.0).unwrap().starts_with("READs"));
    assert_eq!(caps(1, write | read), None);
    assert_eq!(caps(3, !0), None);
}

#[test]
fn the_variable_takes_what_it_says() {
    let builder = || Config::builder(VerbsComponent.vars()).ignore_env();
    let config = |value: &str| builder().set(ODP.name(), value).build();
    for (text, value) in
        [("auto", OrAuto::Auto), ("try", OrAuto::Auto), ("y", OrAuto::Set(true)), ("no", OrAuto::Set(false))]
    {
        assert_eq!(config(text).unwrap().get(&ODP), value, "{text}");
    }
    for text in ["", "maybe not", "2", "odp"] {
        let error = config(text).unwrap_err();
        assert_eq!(error.variable(), "UCX_VERBS_ODP");
        assert!(error.to_string().contains(&*OrAuto::<bool>::accepts()), "{error}");
    }
    assert_eq!(builder().build().unwrap().get(&ODP), OrAuto::Auto);
}
