//! Mutations of inputs, always the same for one seed.

/// Makes new inputs of old ones.
pub(super) struct Mutator {
    random: fastrand::Rng,
}

/// The longest input.
const LONGEST: usize = 4_096;

impl Mutator {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: fastrand::Rng::with_seed(seed) }
    }

    /// One of these inputs with a few changes.
    pub(super) fn mutation(&mut self, inputs: &[Vec<u8>], words: &[Vec<u8>]) -> Vec<u8> {
        let mut input = self.one_of(inputs).clone();
        for _ in 0..self.random.usize(1..6) {
            self.change(&mut input, inputs, words);
        }
        input.truncate(LONGEST);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>, inputs: &[Vec<u8>], words: &[Vec<u8>]) {
        let (from, to) = self.part(input);
        match self.random.u8(0..8) {
            0 if from < input.len() => input[from] ^= 1 << self.random.u8(0..8),
            1 => input.insert(from, self.random.u8(..)),
            2 => drop(input.drain(from..to)),
            3 => {
                let twice = input[from..to].to_vec();
                input.splice(to..to, twice);
            }
            4 => {
                let other = self.one_of(inputs);
                let (start, end) = self.part(other);
                input.splice(from..to, other[start..end].iter().copied());
            }
            5 => {
                input.truncate(from);
                let other = self.one_of(inputs);
                input.extend_from_slice(&other[self.part(other).0..]);
            }
            6 => {
                let word = self.one_of(words);
                input.splice(from..(from + word.len()).min(input.len()), word.iter().copied());
            }
            _ => {
                let word = self.one_of(words);
                input.splice(from..from, word.iter().copied());
            }
        }
    }

    /// The two ends of some part of the input, more often of a short one.
    fn part(&mut self, input: &[u8]) -> (usize, usize) {
        let from = self.random.usize(0..=input.len());
        let most = if self.random.bool() { 4 } else { input.len() };
        (from, from + self.random.usize(0..=most.min(input.len() - from)))
    }

    fn one_of<'l, T>(&mut self, list: &'l [T]) -> &'l T {
        &list[self.random.usize(0..list.len())]
    }
}

/// The words of a dictionary of libFuzzer: each line has one in quotes, with `\xAB` for a byte.
pub(super) fn dictionary(text: &str) -> Vec<Vec<u8>> {
    let words = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    words.map(|line| word(line.trim_matches('"'))).collect()
}

fn word(text: &str) -> Vec<u8> {
    let mut parts = text.split("\\x");
    let mut word = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        word.push(u8::from_str_radix(&part[..2], 16).unwrap());
        word.extend_from_slice(&part.as_bytes()[2..]);
    }
    word
}

#[test]
fn a_dictionary_has_words_with_any_byte() {
    let words = dictionary("# words\n\"a b\"\n\n\"\\x22\\x0D\\x0Ax\\xF5\"\n");
    assert_eq!(words, [&b"a b"[..], b"\"\r\nx\xF5"]);
}
