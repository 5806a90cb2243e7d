//! Packs a call's numbers and texts as MessagePack. The script unpacks them. The head of `call/shell.lua` says
//! what each number means.

use super::Verb;
use crate::Mode;
use crate::algorithm::Difference;
use crate::bucket::Holder;
use crate::decide::Ask;

/// Packs a whole number from 0 to 65,535.
pub(super) fn pack_index(index: usize, into: &mut Vec<u8>) {
    match u16::try_from(index) {
        Ok(index @ ..=0x7F) => into.extend(index.to_be_bytes().last()),
        Ok(index) => {
            into.push(0xCD);
            into.extend_from_slice(&index.to_be_bytes());
        }
        // No call has more asks. With a nil instead the script fails.
        Err(_) => into.push(0xC0),
    }
}

/// Packs a text of up to 255 bytes.
fn pack_text(text: &str, into: &mut Vec<u8>) {
    into.extend([0xD9, u8::try_from(text.len()).unwrap_or(u8::MAX)]);
    into.extend_from_slice(text.as_bytes());
}

/// Packs a whole number of 64 bits.
pub(super) fn pack_number(number: i64, into: &mut Vec<u8>) {
    into.push(0xD3);
    into.extend_from_slice(&number.to_be_bytes());
}

/// Packs a list of at most 15 figures.
fn pack_figures(figures: &[u64], into: &mut Vec<u8>) {
    into.push(0x90 | u8::try_from(figures.len()).unwrap_or(0));
    for figure in figures {
        pack_number(figure.cast_signed(), into);
    }
}

pub(super) fn pack_terms(verb: Verb, ask: &Ask, holder: Option<Holder>, into: &mut Vec<u8>) {
    pack_text(ask.algorithm.name(), into);
    // Costs, differences and figures are below 2^53.
    let cost = match verb {
        Verb::Take | Verb::Look => ask.cost.get().cast_signed(),
        Verb::Settle(Difference::More(tokens), _) => tokens.cast_signed(),
        Verb::Settle(Difference::Less(tokens), _) => -tokens.cast_signed(),
    };
    pack_number(cost, into);
    pack_text(
        match (verb, ask.mode) {
            (Verb::Look, _) => "look",
            (Verb::Settle(..), _) => "settle",
            (_, Mode::Enforce) if !ask.takes => "peek",
            (_, Mode::Enforce) => "enforce",
            // If a limit in shadow takes nothing, its request does not either.
            (_, Mode::Shadow | Mode::Mark) if !ask.takes => "look",
            (_, Mode::Shadow | Mode::Mark) => "shadow",
            (_, Mode::Candidate) => "candidate",
        },
        into,
    );
    let mut figures = ask.algorithm.figures();
    figures.extend(holder.into_iter().flat_map(|holder| [holder.worker, holder.request]));
    pack_figures(&figures, into);
    pack_number(ask.max_wait.as_micros().cast_signed(), into);
    if let Verb::Settle(_, receipt) = verb {
        pack_number(receipt.time().as_micros().cast_signed(), into);
        if let Some(former) = receipt.other_than(&ask.algorithm) {
            pack_figures(&former.figures(), into);
        }
    }
}
