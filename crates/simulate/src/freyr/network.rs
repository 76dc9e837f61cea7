//! A perceptron of fixed shape, 11-32-16-1 with hyperbolic tangents, its gradient, and the optimizer that trains it.

use dayfly_harvest::random::Random;

/// Features of one candidate.
pub(super) const INPUTS: usize = 11;
const FIRST: usize = 32;
const SECOND: usize = 16;

/// Weights and biases of the three layers, in this order: of each layer the weights, input by input, then the biases.
pub(super) const PARAMETERS: usize = (INPUTS + 1) * FIRST + (FIRST + 1) * SECOND + (SECOND + 1);
const SECOND_AT: usize = (INPUTS + 1) * FIRST;
const LAST_AT: usize = SECOND_AT + (FIRST + 1) * SECOND;

/// The perceptron.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Network {
    parameters: Vec<f32>,
}

/// What a forward pass leaves for the backward pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pass {
    first: [f32; FIRST],
    second: [f32; SECOND],
    /// The output.
    pub(super) output: f32,
}

impl Network {
    /// Draws weights and biases uniformly from +-1/sqrt(inputs of the layer), as is usual for layers of this kind.
    pub(super) fn random(random: &mut Random) -> Self {
        let mut parameters = Vec::with_capacity(PARAMETERS);
        for (inputs, outputs) in [(INPUTS, FIRST), (FIRST, SECOND), (SECOND, 1)] {
            let bound = 1.0 / (inputs as f32).sqrt();
            parameters.extend((0..(inputs + 1) * outputs).map(|_| (2.0 * random.unit() as f32 - 1.0) * bound));
        }
        Self { parameters }
    }

    /// Takes `PARAMETERS` parameters. Those that are missing are 0.
    pub(super) fn new(parameters: &[f32]) -> Self {
        let mut parameters = parameters.to_vec();
        parameters.resize(PARAMETERS, 0.0);
        Self { parameters }
    }

    pub(super) fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    pub(super) fn forward(&self, input: &[f32; INPUTS]) -> Pass {
        let first = layer::<INPUTS, FIRST>(&self.parameters[..SECOND_AT], input).map(tanh);
        let second = layer::<FIRST, SECOND>(&self.parameters[SECOND_AT..LAST_AT], &first).map(tanh);
        let [output] = layer::<SECOND, 1>(&self.parameters[LAST_AT..], &second);
        Pass { first, second, output }
    }

    /// Adds to `gradient` the derivatives of a loss by the parameters, where `slope` is the loss's by the output.
    pub(super) fn backward(&self, input: &[f32; INPUTS], pass: &Pass, slope: f32, gradient: &mut [f32; PARAMETERS]) {
        let (first, rest) = gradient.split_at_mut(SECOND_AT);
        let (second, last) = rest.split_at_mut(LAST_AT - SECOND_AT);
        let slopes = layer_back::<SECOND, 1>(&self.parameters[LAST_AT..], &pass.second, &[slope], last);
        let slopes = through_tanh(&slopes, &pass.second);
        let slopes = layer_back::<FIRST, SECOND>(&self.parameters[SECOND_AT..LAST_AT], &pass.first, &slopes, second);
        let slopes = through_tanh(&slopes, &pass.first);
        layer_back::<INPUTS, FIRST>(&self.parameters[..SECOND_AT], input, &slopes, first);
    }
}

/// Outputs of a layer. The inner loop is over outputs: the compiler makes vector instructions of it.
fn layer<const I: usize, const O: usize>(parameters: &[f32], input: &[f32; I]) -> [f32; O] {
    let (weights, biases) = parameters.split_at(I * O);
    let mut output = [0.0; O];
    output.copy_from_slice(biases);
    for (weights, input) in weights.chunks_exact(O).zip(input) {
        for (output, weight) in output.iter_mut().zip(weights) {
            *output += weight * input;
        }
    }
    output
}

/// Adds the derivatives by a layer's parameters to `gradient`, and returns those by its inputs.
fn layer_back<const I: usize, const O: usize>(
    parameters: &[f32],
    input: &[f32; I],
    slopes: &[f32; O],
    gradient: &mut [f32],
) -> [f32; I] {
    let (weights, _) = parameters.split_at(I * O);
    let (by_weights, by_biases) = gradient.split_at_mut(I * O);
    for (by_bias, slope) in by_biases.iter_mut().zip(slopes) {
        *by_bias += slope;
    }
    let mut by_input = [0.0; I];
    let rows = weights.chunks_exact(O).zip(by_weights.chunks_exact_mut(O));
    for ((input, by_input), (weights, by_weights)) in input.iter().zip(&mut by_input).zip(rows) {
        for ((by_weight, weight), slope) in by_weights.iter_mut().zip(weights).zip(slopes) {
            *by_weight += slope * input;
            *by_input += slope * weight;
        }
    }
    by_input
}

fn through_tanh<const N: usize>(slopes: &[f32; N], outputs: &[f32; N]) -> [f32; N] {
    let mut result = *slopes;
    for (slope, output) in result.iter_mut().zip(outputs) {
        *slope *= 1.0 - output * output;
    }
    result
}

/// Hyperbolic tangent by Lambert's continued fraction to the seventh power, within 2e-4. It is fast, and the same on
/// every machine, which a library's is not. Above 4.97 the fraction passes 1, so the argument is held there.
fn tanh(x: f32) -> f32 {
    let x = x.clamp(-4.97, 4.97);
    let square = x * x;
    let above = x * (135_135.0 + square * (17_325.0 + square * (378.0 + square)));
    let below = 135_135.0 + square * (62_370.0 + square * (3_150.0 + square * 28.0));
    above / below
}

/// The AdamW optimizer (Loshchilov and Hutter, ICLR 2019) with its usual constants.
#[derive(Debug, Clone)]
pub(super) struct Optimizer {
    mean: Vec<f32>,
    square: Vec<f32>,
    steps: i32,
}

impl Optimizer {
    const MEAN_DECAY: f32 = 0.9;
    const SQUARE_DECAY: f32 = 0.999;
    const EPSILON: f32 = 1e-8;
    const WEIGHT_DECAY: f32 = 0.01;

    pub(super) fn new() -> Self {
        Self {
            mean: vec![0.0; PARAMETERS],
            square: vec![0.0; PARAMETERS],
            steps: 0,
        }
    }

    /// Moves a network's parameters one step of length `rate` against the gradient.
    pub(super) fn step(&mut self, network: &mut Network, gradient: &[f32; PARAMETERS], rate: f32) {
        self.steps = self.steps.saturating_add(1);
        let mean_scale = 1.0 / (1.0 - Self::MEAN_DECAY.powi(self.steps));
        let square_scale = 1.0 / (1.0 - Self::SQUARE_DECAY.powi(self.steps));
        let moments = self.mean.iter_mut().zip(&mut self.square);
        for ((parameter, (mean, square)), slope) in network.parameters.iter_mut().zip(moments).zip(gradient) {
            *mean = Self::MEAN_DECAY * *mean + (1.0 - Self::MEAN_DECAY) * slope;
            *square = Self::SQUARE_DECAY * *square + (1.0 - Self::SQUARE_DECAY) * slope * slope;
            let step = *mean * mean_scale / ((*square * square_scale).sqrt() + Self::EPSILON);
            *parameter -= rate * (step + Self::WEIGHT_DECAY * *parameter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(random: &mut Random) -> [f32; INPUTS] {
        std::array::from_fn(|_| 2.0 * random.unit() as f32 - 1.0)
    }

    #[test]
    fn tanh_is_near_the_library_everywhere() {
        for step in -2_000..=2_000 {
            let x = step as f32 / 200.0;
            assert!((tanh(x) - x.tanh()).abs() < 2e-4, "{x}: {}", tanh(x));
            assert!(tanh(x).abs() <= 1.0);
        }
    }

    #[test]
    fn gradient_matches_differences_of_the_output() {
        let mut random = Random::new(3);
        let network = Network::random(&mut random);
        let input = input(&mut random);
        let mut gradient = [0.0; PARAMETERS];
        network.backward(&input, &network.forward(&input), 1.0, &mut gradient);
        let step = 1e-2;
        for index in (0..PARAMETERS).step_by(7) {
            let moved = |by: f32| {
                let mut parameters = network.parameters.clone();
                parameters[index] += by;
                Network { parameters }.forward(&input).output
            };
            let difference = (moved(step) - moved(-step)) / (2.0 * step);
            assert!(
                (difference - gradient[index]).abs() < 2e-3,
                "{index}: {difference} against {}",
                gradient[index]
            );
        }
    }

    #[test]
    fn optimizer_fits_a_function_that_is_not_linear() {
        let mut random = Random::new(5);
        let mut network = Network::random(&mut random);
        let mut optimizer = Optimizer::new();
        let points: Vec<_> = (0..64)
            .map(|_| {
                let input = input(&mut random);
                (input, input[0] * input[1])
            })
            .collect();
        let loss = |network: &Network| {
            points
                .iter()
                .map(|(input, target)| (network.forward(input).output - target).powi(2))
                .sum::<f32>()
                / 64.0
        };
        let before = loss(&network);
        for _ in 0..500 {
            let mut gradient = [0.0; PARAMETERS];
            for (input, target) in &points {
                let pass = network.forward(input);
                network.backward(input, &pass, 2.0 * (pass.output - target) / 64.0, &mut gradient);
            }
            optimizer.step(&mut network, &gradient, 3e-3);
        }
        assert!(loss(&network) < 0.1 * before, "{before} to {}", loss(&network));
    }
}
