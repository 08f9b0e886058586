//! Clustered vectors, like embeddings of texts.

use std::f64::consts::TAU;

use crate::SplitMix64;

/// Vectors around the centres of clusters.
///
/// A centre is a uniformly distributed direction. A vector is a centre plus isotropic normal noise, normalized to a
/// length of one. `noise` is the length of the noise relative to the centre's: with 0.5 two vectors of one cluster have
/// a cosine of about 0.8, with 1 of about 0.5. Two centres have a cosine of about 0.
#[derive(Debug, Clone)]
pub struct Clusters {
    seed: u64,
    noise: f64,
    centres: Vec<Vec<f64>>,
}

impl Clusters {
    /// Draws the centres.
    pub fn new(seed: u64, clusters: usize, dims: usize, noise: f64) -> Self {
        let mut random = SplitMix64::new(seed);
        let centre = |_| {
            let mut centre = normal(&mut random, dims);
            scale(&mut centre);
            centre
        };
        Self { seed, noise, centres: (0..clusters.max(1)).map(centre).collect() }
    }

    /// Draws the vector of a number, deterministically, and returns it with the number of its cluster.
    pub fn vector(&self, number: u64) -> (usize, Vec<f32>) {
        // Independent of the seed of the centres.
        let mut random = SplitMix64::new(self.seed ^ (1 << 63) ^ number);
        let cluster = random.below(self.centres.len());
        let centre = &self.centres[cluster];
        let noise = normal(&mut random, centre.len());
        #[expect(clippy::cast_precision_loss, reason = "there are at most 16,000 dimensions")]
        let size = self.noise / (centre.len() as f64).sqrt();
        let mut vector: Vec<f64> =
            centre.iter().zip(noise).map(|(centre, noise)| centre + noise * size).collect();
        scale(&mut vector);
        #[expect(clippy::cast_possible_truncation, reason = "embeddings are single floats")]
        let vector = vector.into_iter().map(|number| number as f32).collect();
        (cluster, vector)
    }
}

/// Draws from the normal distribution, two numbers at a time (Box-Muller).
fn normal(random: &mut SplitMix64, count: usize) -> Vec<f64> {
    #[expect(clippy::cast_precision_loss, reason = "53 bits are a double's")]
    let mut uniform = || ((random.next_u64() >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
    let mut numbers = Vec::with_capacity(count + 1);
    while numbers.len() < count {
        let (radius, angle) = ((-2.0 * uniform().ln()).sqrt(), TAU * uniform());
        numbers.extend([radius * angle.cos(), radius * angle.sin()]);
    }
    numbers.truncate(count);
    numbers
}

fn scale(vector: &mut [f64]) {
    let length = vector.iter().map(|number| number * number).sum::<f64>().sqrt();
    for number in vector {
        *number /= length;
    }
}

#[cfg(test)]
mod tests {
    use checkpoint_core::store::Distance;

    use super::*;

    #[test]
    fn clusters_have_the_configured_width() {
        let clusters = Clusters::new(7, 20, 384, 0.5);
        let drawn: Vec<_> = (0..400).map(|number| clusters.vector(number)).collect();
        assert_eq!(drawn[3], clusters.vector(3), "the same number is the same vector");
        let dot = |a, b| Distance::InnerProduct.score(a, b);
        let (mut same, mut other) = (Vec::new(), Vec::new());
        for (at, (cluster, vector)) in drawn.iter().enumerate() {
            assert!((dot(vector, vector) - 1.0).abs() < 1e-6);
            for (second, vector_2) in &drawn[..at] {
                let cosine = dot(vector, vector_2);
                if cluster == second { same.push(cosine) } else { other.push(cosine) }
            }
        }
        let mean =
            |cosines: &[f64]| cosines.iter().sum::<f64>() / f64::from(u32::try_from(cosines.len()).unwrap());
        assert!(same.len() > 2000 && (mean(&same) - 0.8).abs() < 0.01, "{}", mean(&same));
        assert!(mean(&other).abs() < 0.02, "{}", mean(&other));
    }
}
