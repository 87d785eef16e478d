//! Many questions in a send, each with an answer of the subsystem's own.

use super::Socket;
use crate::attribute::DecodeError;
use crate::batch::{Batch, Part};
use crate::error::Error;

/// Bytes of the receive buffer that an answer takes at most: the kernel makes it in a page
/// (`NLMSG_DEFAULT_SIZE` in include/net/netlink.h), and counts what it needs to keep it.
pub(super) const ANSWER_COST: usize = 8 << 10;

impl Socket {
    /// Sends every request of the batch, each of which is answered by one message of the
    /// subsystem's own, and returns what `decode` makes of it, or the refusal, in their order.
    ///
    /// A refused request does not keep the ones behind it from being answered.
    ///
    /// # Errors
    /// When the socket itself fails.
    pub fn ask<T>(
        &mut self,
        batch: &Batch,
        decode: impl Fn(&[u8]) -> Result<T, DecodeError>,
    ) -> Result<Vec<Result<T, Error>>, Error> {
        let mut answers = Vec::with_capacity(batch.len());
        while answers.len() < batch.len() {
            let first = answers.len();
            if batch.is_too_long(first) {
                answers.push(Err(Error::too_long()));
                continue;
            }
            let count = batch.span(first, self.questions_per_send, self.bytes_per_send);
            // An acknowledgement would be a second answer: each has one of its own.
            let begin = self.transmit(batch, Part::new(first, count))?;
            let mut results = Vec::new();
            results.resize_with(count, || Ok(()));
            let mut said: Vec<Option<Result<T, DecodeError>>> = Vec::new();
            said.resize_with(count, || None);
            let last = count.saturating_sub(1);
            let keep = |index: usize, body: &[u8]| {
                if let Some(place) = said.get_mut(index) {
                    *place = Some(decode(body));
                }
            };
            self.collect(begin, &mut results, |is_answered| is_answered(last), keep)?;
            answers.extend(results.into_iter().zip(said).map(|(result, said)| {
                match (result, said) {
                    (Err(error), _) => Err(error),
                    (Ok(()), Some(Ok(answer))) => Ok(answer),
                    (Ok(()), Some(Err(error))) => Err(error.into()),
                    (Ok(()), None) => {
                        Err(DecodeError::new("answer", "the kernel said yes and nothing else")
                            .into())
                    }
                }
            }));
        }
        Ok(answers)
    }
}
